//! Forward-auth, asked by a real nginx as the guide configures it.

use std::path::Path;

use super::*;

struct Nginx {
    _process: Process,
    _folder: TempDir,
    port: u16,
}

/// nginx with the configuration of its guide, between clients and an upstream.
fn nginx(server: &Server, upstream: &Files) -> Nginx {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/nginx.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let block = guide.split("```nginx\n").nth(1).unwrap().split("```").next().unwrap();
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let block = block
        .replace("127.0.0.1:8080", &server.address.to_string())
        .replace("127.0.0.1:3000", &format!("127.0.0.1:{}", upstream.port))
        .replace("listen 80;", &format!("listen 127.0.0.1:{port};"));
    let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|kind| format!("{kind}_temp_path {kind};"));
    let text = format!(
        "daemon off; master_process off; pid nginx.pid; error_log error.log;\nevents {{}}\nhttp {{ access_log off;\n{}\n{block}\n}}\n",
        temp.join("\n")
    );
    std::fs::write(folder.path().join("nginx.conf"), text).unwrap();
    let mut command = Command::new("nginx");
    command.args(["-e", "error.log", "-c", "nginx.conf", "-p"]).arg(folder.path());
    let process = Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    until("nginx", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    Nginx { _process: process, _folder: folder, port }
}

#[test]
fn behind_nginx_each_user_has_a_limit_of_their_own() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let files = [("rules.yaml", RULES), ("jwks.json", &*jwks("old")), ("secret", MADE["secret"].as_str().unwrap())];
    let args = [
        "--rules=rules.yaml",
        "--auth-jwt-jwks-file=jwks.json",
        "--auth-jwt-secret-file=secret",
        "--auth-jwt-tier-claim=plan",
        "--auth-jwt-issuer=https://issuer.example/",
        "--auth-jwt-audience=api",
    ];
    let server = Server::start(&files, &args);
    let nginx = nginx(&server, &upstream);
    let ask = |token: &str| {
        let (name, value) = bearer(token);
        get(&format!("http://127.0.0.1:{}/index.html", nginx.port), &[(name, &value)])
    };
    for (name, allowed) in [("rs256", 2), ("es256", 3), ("eddsa", 2), ("hs256", 2)] {
        for request in 0..=allowed {
            let expected = if request < allowed { 200 } else { 429 };
            assert_eq!(ask(token(name)).status, expected, "{name}, request {request}");
        }
    }
    let served = upstream.asked("/index.html");
    // nginx itself refuses so long a header.
    for (name, token) in MADE["tokens"]["invalid"].as_object().unwrap().iter().filter(|(name, _)| *name != "huge") {
        let answer = ask(token.as_str().unwrap());
        assert_eq!(answer.status, 401, "{name}: {answer:?}");
        assert!(answer.header("www-authenticate").is_some_and(|value| value.contains("invalid_token")), "{name}");
    }
    assert_eq!(upstream.asked("/index.html"), served);
}

#[test]
fn forward_auth_answers_as_a_client_may_see_it() {
    let files = [("rules.yaml", RULES), ("jwks.json", &*jwks("old"))];
    let server = Server::start(&files, &["--rules=rules.yaml", "--auth-jwt-jwks-file=jwks.json"]);
    let ask = |token: &str| {
        let value = bearer(token).1;
        let headers = [("Authorization", &*value), ("X-Forwarded-Method", "GET"), ("X-Forwarded-Uri", "/x")];
        server.get_with("/v1/auth", &headers)
    };
    assert_eq!([0; 3].map(|_| ask(token("rs256")).status), [200, 200, 429]);
    let answer = ask("garbage");
    assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some(r#"Bearer error="invalid_token""#)));
}
