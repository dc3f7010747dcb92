//! `TG.CHECK` and `TG.PEEK`: decide a request by the rules.

use tidegate_rules::Ruling;

use super::facts::{FactError, RequestFacts};
use super::target::KeyTarget;
use super::{CommandAnswer, ruling_reply};
use crate::receipts;
use crate::resp::RespServer;
use crate::resp::reply::{ReplyWriter, RespProtocol};
use crate::resp::request::RequestWords;

/// `TG.CHECK fact value …`.
pub(super) fn check<'d>(
    service: &'d RespServer,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandAnswer<'d> {
    let words = words.after(1);
    let asked = match RequestFacts::decode(words) {
        Ok(asked) => asked,
        Err(misunderstood) => return not_understood(&misunderstood, reply),
    };
    if let Some(ruling) = service.engine.check(&asked).now() {
        write(&ruling, reply);
        return CommandAnswer::Now;
    }
    let (words, protocol) = (words.to_owned(), reply.protocol());
    CommandAnswer::Later(Box::pin(async move {
        match RequestFacts::decode(words.words()) {
            Ok(asked) => written(&service.engine.check(&asked).await, protocol),
            Err(misunderstood) => aside(protocol, |reply| reply.error("ERR", misunderstood)),
        }
    }))
}

/// `TG.PEEK fact value …`, or `TG.PEEK RULE id part …` for one key of one rule.
pub(super) fn peek<'d>(
    service: &'d RespServer,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandAnswer<'d> {
    let words = words.after(1);
    let (words, protocol) = (words.to_owned(), reply.protocol());
    CommandAnswer::Later(Box::pin(async move {
        let limiter = service.engine.limiter();
        match KeyTarget::decode(words.words()) {
            Ok(KeyTarget::Request(asked)) => written(&limiter.peek(&*asked).await, protocol),
            Ok(KeyTarget::Key { rule, parts }) => match limiter.peek_key(rule, &parts, None).await {
                Ok(ruling) => written(&ruling, protocol),
                Err(no_such_key) => aside(protocol, |reply| reply.error("ERR", no_such_key)),
            },
            Err(misunderstood) => aside(protocol, |reply| reply.error("ERR", misunderstood)),
        }
    }))
}

pub(super) fn not_understood<'d>(misunderstood: &FactError, reply: &mut ReplyWriter<'_>) -> CommandAnswer<'d> {
    reply.error("ERR", misunderstood);
    CommandAnswer::Now
}

/// A reply in a separate buffer.
pub(super) fn aside(protocol: RespProtocol, write: impl FnOnce(&mut ReplyWriter<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut ReplyWriter::new(&mut out, protocol));
    out
}

fn written(ruling: &Ruling<'_>, protocol: RespProtocol) -> Vec<u8> {
    aside(protocol, |reply| write(ruling, reply))
}

fn write(ruling: &Ruling<'_>, reply: &mut ReplyWriter<'_>) {
    ruling_reply::write(ruling, receipts::write(&ruling.receipts).as_deref(), reply);
}
