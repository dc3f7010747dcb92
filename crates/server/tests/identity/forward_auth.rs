//! Forward-auth with a real nginx and HAProxy, configured as in the guides.

use std::path::Path;

use super::*;

/// A proxy between clients and an upstream, until it is dropped.
struct Proxy {
    _process: Process,
    _folder: TempDir,
    port: u16,
}

/// The first block in this language in a proxy's guide.
fn block(guide: &str, language: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(guide);
    let guide = std::fs::read_to_string(path).unwrap();
    guide.split(&format!("```{language}\n")).nth(1).unwrap().split("```").next().unwrap().to_owned()
}

impl Proxy {
    /// nginx with the configuration in its guide.
    fn nginx(server: &Server, upstream: &Files) -> Proxy {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let block = block("nginx.md", "nginx")
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
        Proxy::start(command, folder, port)
    }

    /// HAProxy with the script and the configuration in its guide.
    fn haproxy(server: &Server, upstream: &Files) -> Proxy {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let own = format!("abns@tidegate-identity-{port}");
        let script = block("haproxy.md", "lua").replace("abns@tidegate", &own);
        let configuration = block("haproxy.md", "haproxy")
            .replace("127.0.0.1:8080", &server.address.to_string())
            .replace("abns@tidegate", &own)
            // Longer timeouts, because the machine may be busy.
            .replace("timeout server 1s", "timeout server 60s")
            .replace("timeout connect 200ms", "timeout connect 60s")
            .replace("bind :80", &format!("bind 127.0.0.1:{port}"))
            .replace("127.0.0.1:3000", &format!("127.0.0.1:{}", upstream.port));
        std::fs::write(folder.path().join("tidegate.lua"), script).unwrap();
        std::fs::write(folder.path().join("haproxy.cfg"), configuration).unwrap();
        let mut command = Command::new("haproxy");
        command.args(["-db", "-f", "haproxy.cfg"]).current_dir(folder.path());
        Proxy::start(command, folder, port)
    }

    fn start(mut command: Command, folder: TempDir, port: u16) -> Proxy {
        let process = Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        until("the proxy", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        Proxy { _process: process, _folder: folder, port }
    }

    fn ask(&self, token: &str) -> Answer {
        let (name, value) = bearer(token);
        get(&format!("http://127.0.0.1:{}/index.html", self.port), &[(name, &value)])
    }
}

#[test]
fn behind_haproxy_an_invalid_token_gets_its_own_response() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let files = [("rules.yaml", RULES), ("jwks.json", &*jwks("old"))];
    let server = Server::start(&files, &["--rules=rules.yaml", "--auth-jwt-jwks-file=jwks.json"]);
    let haproxy = Proxy::haproxy(&server, &upstream);
    assert_eq!([0; 3].map(|_| haproxy.ask(token("rs256")).status), [200, 200, 429]);
    let answer = haproxy.ask("garbage");
    assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some(r#"Bearer error="invalid_token""#)));
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
    let nginx = Proxy::nginx(&server, &upstream);
    let ask = |token: &str| nginx.ask(token);
    for (name, allowed) in [("rs256", 2), ("es256", 3), ("eddsa", 2), ("hs256", 2)] {
        for request in 0..=allowed {
            let expected = if request < allowed { 200 } else { 429 };
            assert_eq!(ask(token(name)).status, expected, "{name}, request {request}");
        }
    }
    let served = upstream.asked("/index.html");
    // nginx itself rejects the header because of its length.
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
