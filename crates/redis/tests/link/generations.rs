//! A link detects that its server was replaced by another one.

use tidegate_redis::LinkError;
use tidegate_redis::link::{Cause, Link, Settings};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::Server;

use crate::link::counter_script::{AMPLE, add, frame, open, open_url, peek, ready};

/// Ends all connections to a server, and waits until the link has a new one.
async fn reconnected(server: &Server, link: &Link) {
    let connections = link.stats().servers[0].counts.connections;
    server.run::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("another connection", async || {
        let _ = peek(link, "a", AMPLE).await;
        (link.stats().servers[0].counts.connections > connections).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_the_same_process_is_one_to_the_same_server() {
    let mut server = Server::start();
    let link = open_url(&server.url());
    ready(&link).await;
    assert_eq!(link.server_generation(), 0);
    for _ in 0..2 {
        reconnected(&server, &link).await;
        assert_eq!(link.server_generation(), 0);
    }
    server.restart();
    ready(&link).await;
    assert_eq!(link.server_generation(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_tell_its_run_id_may_be_another_after_each_reconnect() {
    let server = Server::start_with("user default on nopass ~* &* +@all -info\n");
    let link = open_url(&server.url());
    ready(&link).await;
    assert_eq!(link.server_generation(), 0);
    for generation in 1..3 {
        reconnected(&server, &link).await;
        assert_eq!(link.server_generation(), generation);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_for_a_server_that_was_replaced_does_not_run() {
    let mut server = Server::start();
    let mut settings = Settings::standalone(&server.url()).unwrap();
    settings.deadline = AMPLE;
    let link = open(settings);
    ready(&link).await;
    let call = |generation| link.call_in_generation(frame(&["a"], "add"), AMPLE, generation);
    assert_eq!(call(0).await, Ok(b"1".to_vec()));
    server.restart();
    ready(&link).await;
    assert_eq!(call(0).await, Err(LinkError::NotRun(Cause::ServerReplaced)));
    assert_eq!(add(&link, "a", AMPLE).await, Ok(1), "nothing was added before");
    assert_eq!(call(1).await, Ok(b"2".to_vec()));
}
