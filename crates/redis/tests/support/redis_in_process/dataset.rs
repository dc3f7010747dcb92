//! Keys and their values, and the commands on them that the script uses.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::protocol::ServerReply;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// All data of a server, at one instant of its clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dataset {
    entries: HashMap<Vec<u8>, Entry>,
    micros: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    /// In milliseconds, by the server's clock.
    expires: Option<u64>,
}

#[derive(Clone, Debug)]
enum Value {
    Text(Vec<u8>),
    /// Members with their scores, in order.
    Sorted(Vec<(f64, Vec<u8>)>),
}

impl Dataset {
    /// Sets the server's clock. Removes keys that have expired.
    pub(super) fn set_time(&mut self, micros: u64) {
        self.micros = micros;
        let now = micros / 1_000;
        self.entries.retain(|_, entry| entry.expires.is_none_or(|expires| expires > now));
    }

    /// Runs a command.
    pub(super) fn run(&mut self, words: &[Vec<u8>]) -> ServerReply {
        let name = std::str::from_utf8(&words[0]).unwrap();
        let integer = |place: usize| text(&words[place]).parse::<i64>().unwrap();
        match (name, &words[1..]) {
            ("TIME", []) => {
                let part = |number: u64| ServerReply::Bulk(number.to_string().into_bytes());
                ServerReply::Array(vec![part(self.micros / 1_000_000), part(self.micros % 1_000_000)])
            }
            ("GET", [key]) => self.string(key).map_or_else(error, optional),
            ("MGET", keys) => {
                let value = |key: &Vec<u8>| optional(self.string(key).unwrap_or_default());
                ServerReply::Array(keys.iter().map(value).collect())
            }
            ("GETRANGE", [key, _, _]) => match self.string(key) {
                Ok(value) => {
                    ServerReply::Bulk(range(value.map_or(&[], Vec::as_slice), integer(2), integer(3)).to_vec())
                }
                Err(fault) => error(fault),
            },
            ("SET", [key, value, px, _]) if px == b"PX" => {
                let expires = Some(self.micros / 1_000 + u64::try_from(integer(4)).unwrap());
                self.entries.insert(key.clone(), Entry { value: Value::Text(value.clone()), expires });
                ServerReply::Status("OK")
            }
            ("SETRANGE", [key, _, value]) => self.set_range(key, usize::try_from(integer(2)).unwrap(), value),
            ("EXISTS", keys) => count(keys.iter().filter(|key| self.entries.contains_key(*key)).count()),
            ("DEL", keys) => count(keys.iter().filter(|key| self.entries.remove(*key).is_some()).count()),
            ("PEXPIRE", [key, _]) => {
                let expires = self.micros / 1_000 + u64::try_from(integer(2)).unwrap();
                let entry = self.entries.get_mut(key);
                count(usize::from(entry.map(|entry| entry.expires = Some(expires)).is_some()))
            }
            (_, [key, rest @ ..]) if name.starts_with('Z') => self.run_sorted(name, key, rest),
            _ => panic!("the script uses a command that is not simulated: {name}"),
        }
    }

    fn string(&self, key: &[u8]) -> Result<Option<&Vec<u8>>, &'static str> {
        match self.entries.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(value)) => Ok(Some(value)),
            Some(Value::Sorted(_)) => Err(WRONG_TYPE),
        }
    }

    fn set_range(&mut self, key: &[u8], start: usize, value: &[u8]) -> ServerReply {
        let empty = || Entry { value: Value::Text(Vec::new()), expires: None };
        let entry = self.entries.entry(key.to_vec()).or_insert_with(empty);
        let Value::Text(text) = &mut entry.value else { return error(WRONG_TYPE) };
        text.resize(text.len().max(start + value.len()), 0);
        text[start..start + value.len()].copy_from_slice(value);
        count(text.len())
    }

    fn run_sorted(&mut self, name: &str, key: &[u8], rest: &[Vec<u8>]) -> ServerReply {
        let mut none = Vec::new();
        let members = match self.entries.get_mut(key).map(|entry| &mut entry.value) {
            None => &mut none,
            Some(Value::Sorted(members)) => members,
            Some(Value::Text(_)) => return error(WRONG_TYPE),
        };
        let reply = match (name, rest) {
            ("ZADD", [score, member]) => {
                let before = members.len();
                members.retain(|(_, other)| other != member);
                let is_new = members.len() == before;
                members.push((text(score).parse().unwrap(), member.clone()));
                members.sort_by(by_score);
                count(usize::from(is_new))
            }
            ("ZREM", [member]) => {
                let before = members.len();
                members.retain(|(_, other)| other != member);
                count(before - members.len())
            }
            ("ZREMRANGEBYSCORE", [least, most]) => {
                let (before, range) = (members.len(), Scores::parse(least, most));
                members.retain(|(score, _)| !range.contains(*score));
                count(before - members.len())
            }
            ("ZSCORE", [member]) => {
                let found = members.iter().find(|(_, other)| other == member);
                found.map_or(ServerReply::Nil, |(score, _)| ServerReply::Bulk(shown(*score)))
            }
            ("ZREVRANGE", [_, _, _]) => members_with_scores(members.iter().rev().take(1)),
            ("ZRANGEBYSCORE", [least, most, options @ ..]) => {
                let range = Scores::parse(least, most);
                let found = members.iter().filter(|(score, _)| range.contains(*score));
                match options {
                    [] => ServerReply::Array(found.map(|(_, member)| ServerReply::Bulk(member.clone())).collect()),
                    [_] => members_with_scores(found),
                    [_, _, skipped, most] => {
                        let number = |word: &[u8]| text(word).parse::<usize>().unwrap();
                        members_with_scores(found.skip(number(skipped)).take(number(most)))
                    }
                    _ => panic!("options of ZRANGEBYSCORE that are not simulated"),
                }
            }
            _ => panic!("the script uses a command that is not simulated: {name}"),
        };
        // A sorted set without members does not exist.
        if name == "ZADD" && !none.is_empty() {
            self.entries.insert(key.to_vec(), Entry { value: Value::Sorted(none), expires: None });
        } else if matches!(self.entries.get(key), Some(Entry { value: Value::Sorted(left), .. }) if left.is_empty()) {
            self.entries.remove(key);
        }
        reply
    }
}

/// A range of scores.
struct Scores {
    least: f64,
    without_least: bool,
    most: f64,
}

impl Scores {
    fn parse(least: &[u8], most: &[u8]) -> Scores {
        let (least, without_least) = match text(least).strip_prefix('(') {
            Some(least) => (least, true),
            None => (text(least), false),
        };
        Scores { least: least.parse().unwrap(), without_least, most: text(most).parse().unwrap() }
    }

    fn contains(&self, score: f64) -> bool {
        let is_above = if self.without_least { score > self.least } else { score >= self.least };
        is_above && score <= self.most
    }
}

fn by_score((one, member): &(f64, Vec<u8>), (other, against): &(f64, Vec<u8>)) -> Ordering {
    one.total_cmp(other).then_with(|| member.cmp(against))
}

fn members_with_scores<'m>(members: impl Iterator<Item = &'m (f64, Vec<u8>)>) -> ServerReply {
    let both = |(score, member): &(f64, Vec<u8>)| [ServerReply::Bulk(member.clone()), ServerReply::Bulk(shown(*score))];
    ServerReply::Array(members.flat_map(both).collect())
}

/// A score as text; all scores are integers.
fn shown(score: f64) -> Vec<u8> {
    assert!(score.fract() == 0.0, "{score}");
    format!("{score:.0}").into_bytes()
}

fn text(word: &[u8]) -> &str {
    std::str::from_utf8(word).unwrap()
}

fn range(value: &[u8], start: i64, end: i64) -> &[u8] {
    let place = |index: i64| usize::try_from(index).unwrap().min(value.len());
    let (start, end) = (place(start), place(end + 1));
    if start < end { &value[start..end] } else { &[] }
}

fn optional(value: Option<&Vec<u8>>) -> ServerReply {
    value.map_or(ServerReply::Nil, |value| ServerReply::Bulk(value.clone()))
}

fn count(number: usize) -> ServerReply {
    ServerReply::Integer(i64::try_from(number).unwrap())
}

fn error(fault: &str) -> ServerReply {
    ServerReply::Error(fault.to_owned())
}
