//! The same method over plain HTTP, as JSON.

use std::process::Command;

use serde_json::{Value, json};

use super::support::{Served, request, told};

const EDGE: &str = "
domain: edge
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 2, name: each_user } }
  - { key: quota, rate_limit: { unit: year, requests_per_unit: 1 }, quota_mode: true, metadata: { pool: large, weight: 1.5 } }
";

/// The response that curl receives: the status, `Retry-After`, and the body.
async fn curl(served: &Served, method: &str, body: &str) -> (u16, String, String) {
    let url = format!("http://{}/json", served.address);
    let (method, body) = (method.to_owned(), body.to_owned());
    let run = move || {
        let form = "\n%{http_code}\n%header{retry-after}";
        let args = ["-sS", "-X", &method, "--json", &body, "-w", form, &url];
        let output = Command::new("curl").args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let mut lines = output.rsplitn(3, '\n');
    let (wait, status, body) = (lines.next().unwrap(), lines.next().unwrap(), lines.next().unwrap());
    (status.parse().unwrap(), wait.to_owned(), body.to_owned())
}

fn alice(more: &str) -> String {
    format!(r#"{{"domain":"edge","descriptors":[{{"entries":[{{"key":"user","value":"alice"}}]{more}}}]}}"#)
}

#[tokio::test]
async fn the_status_tells_the_verdict() {
    let served = Served::new(EDGE).await;
    for (left, status) in [(Some(1), 200), (None, 200), (None, 429)] {
        let (code, wait, body) = curl(&served, "POST", &alice("")).await;
        assert_eq!(code, status);
        assert_eq!(!wait.is_empty(), status == 429, "{wait}");
        let body: Value = serde_json::from_str(&body).unwrap();
        let verdict = if status == 429 { "OVER_LIMIT" } else { "OK" };
        assert_eq!(body["overallCode"], verdict);
        let told = &body["statuses"][0];
        assert_eq!(told["code"], verdict);
        assert_eq!(told["currentLimit"], json!({ "name": "each_user", "requestsPerUnit": 2, "unit": "YEAR" }));
        assert_eq!(told["limitRemaining"].as_u64(), left, "protobuf leaves out what is 0");
        let reset = told["durationUntilReset"].as_str().unwrap().strip_suffix('s').unwrap();
        assert!(reset.parse::<f64>().unwrap() > 0.0);
    }
    // The gRPC listener reports the same.
    assert_eq!(told(&served.ask(request("edge", &["user=alice"])).await), "OVER_LIMIT: OVER_LIMIT 0");
}

#[tokio::test]
async fn all_of_the_message_can_be_written() {
    let served = Served::new(EDGE).await;
    for (more, status) in [
        (r#","hitsAddend":"0""#, 200),
        (r#","hits_addend":2"#, 200),
        (r#","hitsAddend":0"#, 429),
        (r#","hitsAddend":1,"isNegativeHits":true"#, 200),
        (r#","limit":{"requestsPerUnit":1,"unit":"HOUR"}"#, 200),
        (r#","limit":{"requests_per_unit":0,"unit":3}"#, 429),
    ] {
        assert_eq!(curl(&served, "POST", &alice(more)).await.0, status, "{more}");
    }
    let quota = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"quota","value":"q"}]}],"hitsAddend":1}"#;
    let (_, _, body) = curl(&served, "POST", quota).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        body["dynamicMetadata"],
        json!({
            "domain": "edge",
            "descriptors": [{ "entries": ["quota=q"] }],
            "hitsAddend": 1,
            "quotaModeViolations": [],
            "metadata": { "pool": "large", "weight": 1.5 },
        })
    );
}

#[tokio::test]
async fn refusals_have_reasons() {
    let served = Served::new(EDGE).await;
    for (method, body, status, reason) in [
        ("POST", "", 400, "not a RateLimitRequest"),
        ("POST", "{", 400, "not a RateLimitRequest"),
        ("POST", "[]", 400, "domain is empty"),
        ("POST", r#"{"domain":"edge"}"#, 400, "no descriptors"),
        ("POST", r#"{"descriptors":[{}]}"#, 400, "domain is empty"),
        ("POST", r#"{"domain":"edge","descriptors":[{}],"what":1}"#, 400, "what"),
        ("POST", r#"{"domain":"edge","descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}"#, 400, "SECOND to YEAR"),
        ("POST", r#"{"domain":"edge","descriptors":[{"hitsAddend":-1}]}"#, 400, "is negative"),
        ("PUT", "{}", 405, "POST"),
    ] {
        let (code, _, told) = curl(&served, method, body).await;
        assert_eq!((code, told.contains(reason)), (status, true), "{method} {body}: {told}");
    }
    let large = format!(r#"{{"domain":"{}"}}"#, "x".repeat(300_000));
    let mut stream = std::net::TcpStream::connect(served.address).unwrap();
    let head = format!(
        "POST /json HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        large.len()
    );
    let answer = tokio::task::spawn_blocking(move || {
        use std::io::{Read, Write};
        // The server responds before it has read everything.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(large.as_bytes()));
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        answer
    });
    assert_eq!(&answer.await.unwrap(), b"HTTP/1.1 413");
}
