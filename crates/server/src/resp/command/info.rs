//! `INFO [section ...]`: state of the server, in lines.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use crate::resp::RespServer;
use crate::resp::reply::ReplyWriter;
use crate::resp::request::RequestWords;
use crate::resp::session::RespSession;
use crate::store::AnyStore;

/// Version of Redis reported to clients, some of which detect features by it. The server supports its protocol, but not
/// all of its commands.
const REDIS_VERSION: &str = "7.0.0";

pub(super) fn answer(
    service: &RespServer,
    session: &RespSession,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) {
    let wants = |section: &str| {
        let asked = words.after(1);
        let any = |word: &[u8]| {
            [b"all".as_slice(), b"default", b"everything"].iter().any(|all| word.eq_ignore_ascii_case(all))
        };
        asked.len() == 0 || asked.iter().any(|word| any(word) || word.eq_ignore_ascii_case(section.as_bytes()))
    };
    let mut text = String::new();
    for (section, lines) in [
        ("Server", server(service)),
        ("Clients", clients(service, session)),
        ("Stats", stats(service)),
        ("Tidegate", limiter(service)),
    ] {
        if wants(section) {
            // Writing to a string cannot fail.
            let _ = write!(text, "{}# {section}\r\n{lines}", if text.is_empty() { "" } else { "\r\n" });
        }
    }
    reply.text(&text);
}

fn server(service: &RespServer) -> String {
    let up = service.began.elapsed().as_secs();
    format!(
        "redis_version:{REDIS_VERSION}\r\ntidegate_version:{}\r\nredis_mode:standalone\r\nos:{}\r\narch_bits:{}\r\nprocess_id:{}\r\nuptime_in_seconds:{up}\r\nuptime_in_days:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        usize::BITS,
        std::process::id(),
        up / 86_400,
    )
}

fn clients(service: &RespServer, session: &RespSession) -> String {
    format!("connected_clients:{}\r\nclient_id:{}\r\n", service.open.load(Ordering::Relaxed), session.id)
}

fn stats(service: &RespServer) -> String {
    let connections = service.ids.load(Ordering::Relaxed) - 1;
    let commands = service.commands.load(Ordering::Relaxed);
    format!("total_connections_received:{connections}\r\ntotal_commands_processed:{commands}\r\n")
}

fn limiter(service: &RespServer) -> String {
    let limiter = service.engine.limiter();
    let rules = limiter.rules();
    let store = match limiter.store() {
        AnyStore::Memory(store) => {
            let stats = store.stats();
            format!("store:memory\r\nkeys:{}\r\nmax_keys:{}\r\n", stats.keys, stats.max_keys)
        }
        AnyStore::Redis(_) => "store:redis\r\n".to_owned(),
    };
    let healthy = if limiter.health().store.is_healthy() { "yes" } else { "no" };
    format!(
        "rules:{}\r\nrules_generation:{}\r\n{store}store_answers:{healthy}\r\n",
        rules.rules.rules().len(),
        rules.number
    )
}
