//! Servers that send more than valid replies.

use tidegate_redis::LinkError;
use tidegate_redis::link::{Cause, Unreachable};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Break, Proxy, Server};

use crate::link::counter_script::{AMPLE, DEADLINE, add, open_url, ready, unreachable};

/// Number of bytes that the system buffers at both ends of a connection, plus those that the link reads ahead.
const BUFFERED: usize = 32 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_without_end_ends_the_connection_and_is_not_kept() {
    let floods: [&[u8]; 4] = [b"$536870912\r\n", b"*1\r\n$536870912\r\n", b"*100000000\r\n", b"+"];
    for flood in floods {
        let text = String::from_utf8_lossy(flood);
        let server = Server::start();
        let proxy = Proxy::start(server.port()).await;
        let link = open_url(&proxy.url());
        ready(&link).await;
        proxy.set(Break::Flood(flood));
        assert_eq!(add(&link, "a", AMPLE).await, Err(LinkError::Unknown(Cause::TooLarge)), "{text:?}");
        // The greeting of the next connection is answered in the same way.
        assert_eq!(unreachable(&link).await, Unreachable::TooLarge, "{text:?}");
        let refused = add(&link, "a", DEADLINE).await.unwrap_err();
        assert!(matches!(refused, LinkError::NotRun(Cause::BreakerOpen(_))), "{text:?}: {refused}");
        assert!(proxy.largest_flood() < BUFFERED, "{text:?}: {} bytes were taken", proxy.largest_flood());
        proxy.set(Break::Nothing);
        eventually("answers again", async || add(&link, "a", AMPLE).await.ok()).await;
        let shown = link.times().errors;
        assert!(shown.contains(&("too_large", 1)), "{shown:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_that_nest_without_end_end_the_connection() {
    const DEEP: [u8; 4 * 64] = {
        let mut bytes = [0; 4 * 64];
        let mut at = 0;
        while at < bytes.len() {
            bytes[at] = b"*1\r\n"[at % 4];
            at += 1;
        }
        bytes
    };
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let link = open_url(&proxy.url());
    ready(&link).await;
    proxy.set(Break::Flood(&DEEP));
    // The second array is one more item than a single call has.
    assert_eq!(add(&link, "a", AMPLE).await, Err(LinkError::Unknown(Cause::TooLarge)));
    proxy.set(Break::Nothing);
    eventually("answers again", async || add(&link, "a", AMPLE).await.ok()).await;
}
