//! Limit on open files, shared by the connections of all listeners.

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::listen::Settings;

/// Default maximum number of connections of a listener, if there are enough files.
const USUAL: usize = 10_000;
/// Lowest maximum number of connections of a listener.
const FEW: usize = 16;
/// Files reserved for everything except client connections: rules, certificates, connections to the store.
const OTHER_FILES: usize = 100;

/// A listener, and the number of files for each of its connections.
pub(super) type ListenerFiles<'s> = (Option<&'s mut Settings>, usize);

/// Raises the limit on open files as far as possible. Returns the limit; `None` if there is none.
pub(super) fn most() -> Option<usize> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit on open files cannot be raised");
        }
    }
    getrlimit(Resource::Nofile).current.map(|files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// Divides the remaining files among listeners without a configured number of connections, so that connections beyond
/// the limit wait instead of failing. Returns whether there are enough files for the configured ones.
pub(super) fn share_out(mut listeners: [ListenerFiles<'_>; 5], files: Option<usize>) -> bool {
    let room = files.map_or(usize::MAX, |files| files.saturating_sub(OTHER_FILES));
    let open = || listeners.iter().filter_map(|(listener, each)| Some((listener.as_ref()?.most_connections, *each)));
    let asked = open().filter_map(|(most, each)| Some(most?.saturating_mul(each))).fold(0, usize::saturating_add);
    let others: usize = open().filter(|(most, _)| most.is_none()).map(|(_, each)| each).sum();
    let share = (room.saturating_sub(asked) / others.max(1)).clamp(FEW, USUAL);
    for listener in listeners.iter_mut().filter_map(|(listener, _)| listener.as_mut()) {
        listener.most_connections.get_or_insert(share);
    }
    asked <= room
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The resulting connections for these settings. A connection of the first listener takes two files.
    fn shared(told: [Option<Option<usize>>; 5], files: Option<usize>) -> (Vec<usize>, bool) {
        let mut listeners = told.map(|told| {
            told.map(|most_connections| Settings { most_connections, ..Settings::at(([127, 0, 0, 1], 0).into()) })
        });
        let mut each = [2, 1, 1, 1, 1].into_iter();
        let is_enough =
            share_out(listeners.each_mut().map(|listener| (listener.as_mut(), each.next().unwrap())), files);
        (listeners.into_iter().flatten().map(|listener| listener.most_connections.unwrap()).collect(), is_enough)
    }

    #[test]
    fn listeners_without_a_setting_share_the_remaining_files() {
        let unsaid = Some(None);
        assert_eq!(shared([unsaid; 5], None), (vec![10_000; 5], true));
        assert_eq!(shared([unsaid; 5], Some(60_100)), (vec![10_000; 5], true));
        assert_eq!(shared([None, unsaid, unsaid, unsaid, unsaid], Some(20_000)), (vec![4_975; 4], true));
        assert_eq!(shared([unsaid; 5], Some(700)), (vec![100; 5], true));
        assert_eq!(shared([unsaid; 5], Some(50)), (vec![FEW; 5], true));
        let told = [Some(Some(200)), unsaid, unsaid, None, None];
        assert_eq!(shared(told, Some(1_100)), (vec![200, 300, 300], true));
        assert_eq!(shared(told, Some(499)), (vec![200, FEW, FEW], false));
    }
}
