//! Connections are files, of which the system lets a process have only so many.

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::listen::Settings;

/// How many connections a door takes at once where nobody says so and there is room.
const USUAL: usize = 10_000;
/// However little room there is.
const FEW: usize = 16;
/// What a server has open besides connections: rules, certificates, the way to its store.
const OTHER_FILES: usize = 100;

/// A door, and how many files a connection there takes.
pub(super) type Files<'s> = (Option<&'s mut Settings>, usize);

/// Has the system let us have as many files as it may. Says how many; `None` if there is no limit.
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

/// Doors that nobody has told how many connections they may take share what the others leave, so that further connections
/// wait and none is accepted that cannot be had. Says whether there is enough for those who were told.
pub(super) fn share_out(mut doors: [Files<'_>; 5], files: Option<usize>) -> bool {
    let room = files.map_or(usize::MAX, |files| files.saturating_sub(OTHER_FILES));
    let open = || doors.iter().filter_map(|(door, each)| Some((door.as_ref()?.most_connections, *each)));
    let asked = open().filter_map(|(most, each)| Some(most?.saturating_mul(each))).fold(0, usize::saturating_add);
    let others: usize = open().filter(|(most, _)| most.is_none()).map(|(_, each)| each).sum();
    let share = (room.saturating_sub(asked) / others.max(1)).clamp(FEW, USUAL);
    for door in doors.iter_mut().filter_map(|(door, _)| door.as_mut()) {
        door.most_connections.get_or_insert(share);
    }
    asked <= room
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many connections doors take that were told so much, each for one file but the first.
    fn shared(told: [Option<Option<usize>>; 5], files: Option<usize>) -> (Vec<usize>, bool) {
        let mut doors = told.map(|told| {
            told.map(|most_connections| Settings { most_connections, ..Settings::at(([127, 0, 0, 1], 0).into()) })
        });
        let mut each = [2, 1, 1, 1, 1].into_iter();
        let is_enough = share_out(doors.each_mut().map(|door| (door.as_mut(), each.next().unwrap())), files);
        (doors.into_iter().flatten().map(|door| door.most_connections.unwrap()).collect(), is_enough)
    }

    #[test]
    fn what_there_is_is_shared_by_those_who_were_told_nothing() {
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
