//! Cache of verified tokens, by their hash.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use ahash::RandomState;
use ring::digest::{SHA256, digest};

use crate::identity::Identity;

/// SHA-256 of a token. The token itself is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenHash([u8; 32]);

impl TokenHash {
    #[inline]
    pub(super) fn of(token: &[u8]) -> TokenHash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, token).as_ref());
        TokenHash(hash)
    }

    fn shard(&self) -> usize {
        usize::from(self.0[0]) % SHARDS
    }
}

/// Number of shards, each with its own lock.
const SHARDS: usize = 16;
/// Approximate size of an entry without its texts, in bytes.
const ENTRY_BYTES: usize = 256;

/// Identities of verified tokens. Replaced together with the set of keys that verified them.
pub(super) struct TokenCache {
    shards: [Mutex<CacheShard>; SHARDS],
    most_entries: usize,
    most_bytes: usize,
}

#[derive(Default)]
struct CacheShard {
    known: HashMap<TokenHash, CachedToken, RandomState>,
    /// Order of insertion.
    order: VecDeque<TokenHash>,
    bytes: usize,
}

struct CachedToken {
    identity: Arc<Identity>,
    /// First second at which the token is no longer valid.
    ends: u64,
    bytes: usize,
}

/// Size of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheSize {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

impl TokenCache {
    /// A cache with a maximum number of entries, and an approximate maximum of bytes.
    pub(super) fn new(most_entries: usize, most_bytes: usize) -> TokenCache {
        TokenCache {
            shards: Default::default(),
            most_entries: most_entries.div_ceil(SHARDS),
            most_bytes: most_bytes.div_ceil(SHARDS),
        }
    }

    /// Identity of a cached token that is valid at the second `now`.
    #[inline]
    pub(super) fn get(&self, token: &TokenHash, now: u64) -> Option<Arc<Identity>> {
        let shard = self.shards[token.shard()].lock().unwrap_or_else(PoisonError::into_inner);
        shard.known.get(token).filter(|entry| now < entry.ends).map(|entry| Arc::clone(&entry.identity))
    }

    /// Caches the identity of a token until the second `ends`. Evicts the oldest entries if necessary.
    pub(super) fn insert(&self, token: TokenHash, identity: &Arc<Identity>, ends: u64) {
        let bytes = ENTRY_BYTES + text_bytes(identity);
        if bytes > self.most_bytes || self.most_entries == 0 {
            return;
        }
        let mut shard = self.shards[token.shard()].lock().unwrap_or_else(PoisonError::into_inner);
        if shard.known.contains_key(&token) {
            return;
        }
        while shard.known.len() >= self.most_entries || shard.bytes + bytes > self.most_bytes {
            let Some(oldest) = shard.order.pop_front() else { break };
            if let Some(entry) = shard.known.remove(&oldest) {
                shard.bytes -= entry.bytes;
            }
        }
        shard.bytes += bytes;
        shard.order.push_back(token);
        shard.known.insert(token, CachedToken { identity: Arc::clone(identity), ends, bytes });
    }

    pub(super) fn size(&self) -> CacheSize {
        self.shards.iter().fold(CacheSize::default(), |size, shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            CacheSize { entries: size.entries + shard.known.len(), bytes: size.bytes + shard.bytes }
        })
    }

    /// Removes tokens that are no longer valid at the second `now`.
    pub(super) fn sweep(&self, now: u64) {
        for shard in &self.shards {
            let shard = &mut *shard.lock().unwrap_or_else(PoisonError::into_inner);
            let CacheShard { known, order, bytes } = shard;
            known.retain(|_, entry| {
                let stays = now < entry.ends;
                *bytes -= if stays { 0 } else { entry.bytes };
                stays
            });
            order.retain(|token| known.contains_key(token));
        }
    }
}

fn text_bytes(identity: &Identity) -> usize {
    let Identity { user, tier, claims } = identity;
    let texts = [user, tier].into_iter().flatten().map(|text| text.len()).sum::<usize>();
    texts + claims.iter().map(|(name, value)| name.len() + value.len() + 2 * size_of::<Box<str>>()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(user: &str) -> Arc<Identity> {
        Arc::new(Identity { user: Some(user.into()), ..Identity::default() })
    }

    fn filled(cache: &TokenCache, tokens: u32, ends: u64) {
        for number in 0..tokens {
            cache.insert(TokenHash::of(&number.to_be_bytes()), &identity(&number.to_string()), ends);
        }
    }

    #[test]
    fn a_cache_holds_no_more_than_it_may() {
        let by_entries = TokenCache::new(160, usize::MAX / 2);
        filled(&by_entries, 10_000, 10);
        assert!(by_entries.size().entries <= 160, "{:?}", by_entries.size());
        let by_bytes = TokenCache::new(usize::MAX / 2, 64 * 1_024);
        filled(&by_bytes, 10_000, 10);
        assert!((32 * 1_024..=64 * 1_024).contains(&by_bytes.size().bytes), "{:?}", by_bytes.size());
    }

    #[test]
    fn expired_tokens_are_not_found_and_make_room() {
        let cache = TokenCache::new(1_000, 1 << 20);
        filled(&cache, 100, 10);
        let token = TokenHash::of(&7_u32.to_be_bytes());
        assert_eq!(cache.get(&token, 9).and_then(|known| known.user.clone()).as_deref(), Some("7"));
        assert_eq!(cache.get(&token, 10), None);
        cache.sweep(10);
        assert_eq!(cache.size(), CacheSize::default());
    }
}
