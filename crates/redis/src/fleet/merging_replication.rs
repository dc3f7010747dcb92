//! Replication between several primaries, which can lose spending.

use std::collections::BTreeMap;

use super::control::FleetControl;
use super::error::FleetError;
use super::region_driver::RegionsControl;
use crate::link::{Announcements, Bound, Commands};

/// Maximum length of an answer to `INFO`, in bytes.
const LARGEST_INFO: usize = 256 << 10;

/// A kind of replication in which a server merges or overwrites writes of other primaries.
///
/// The state of a limit is a packed string. If two are written at the same time, one wins and the spending in the other is
/// lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergingReplication {
    /// Active-Active databases of Redis Software and Redis Cloud.
    #[error(
        "it is an Active-Active database, in which the last write wins: limits would forget what other regions count; use a \
         database that replicates within its region only"
    )]
    ActiveActive,
    /// A server with a module for conflict-free replicated data types.
    #[error(
        "it has a module of conflict-free replicated data types, in which the last write wins: limits would forget what other \
         regions count; use a server that replicates within its region only"
    )]
    CrdtModule,
    /// Active replicas of KeyDB, possibly with several masters.
    #[error(
        "it is an active replica, in which the newest write wins: limits would forget what other servers count; set \
         `active-replica no`"
    )]
    ActiveReplica,
}

impl MergingReplication {
    /// The kind of replication in an answer to `INFO`; `None` if there is none.
    #[must_use]
    pub fn in_info(info: &str) -> Option<MergingReplication> {
        info.lines().find_map(|line| match line.trim_end().split_once(':')? {
            ("role", "active-replica") => Some(MergingReplication::ActiveReplica),
            ("module", module) => {
                let is_crdt = module.split(',').any(|field| field == "name=crdt");
                is_crdt.then_some(MergingReplication::CrdtModule)
            }
            (name, _) => name.starts_with("crdt_").then_some(MergingReplication::ActiveActive),
        })
    }
}

impl FleetControl {
    /// The kind of replication of this Redis, if it merges writes of several primaries. Most servers that do so report it
    /// in `INFO`. Also `None` if the user has no permission for that.
    ///
    /// # Errors
    /// Fails if Redis does not answer.
    pub async fn merging_replication(&self) -> Result<Option<MergingReplication>, FleetError> {
        let mut session = self.connect(Announcements::Unwanted).await?;
        let commands = Commands::new().with(&[b"INFO"], Bound::string(LARGEST_INFO));
        let read = session.values(&commands, |reply| Some(reply.text()?.to_vec())).await?;
        let info = read.ok().into_iter().flatten().next().unwrap_or_default();
        Ok(MergingReplication::in_info(&String::from_utf8_lossy(&info)))
    }
}

impl RegionsControl {
    /// The regions whose Redis merges writes of several primaries. Excludes those that do not answer.
    pub async fn merging_replications(&self) -> BTreeMap<String, MergingReplication> {
        let mut found = BTreeMap::new();
        for (region, control) in &self.regions {
            if let Ok(Some(replication)) = control.merging_replication().await {
                found.insert(region.clone(), replication);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_merge_writes_are_known_by_what_they_tell() {
        use MergingReplication::{ActiveActive, ActiveReplica, CrdtModule};
        let told = MergingReplication::in_info;
        // The fields are those of the vendors' documentation.
        assert_eq!(
            told("# CRDT Context\r\ncrdt_config_version:4\r\ncrdt_slots:0-16383\r\ncrdt_ovc:1\r\n"),
            Some(ActiveActive)
        );
        assert_eq!(
            told("# Replication\r\nrole:active-replica\r\nmaster_global_link_status:up\r\n"),
            Some(ActiveReplica)
        );
        assert_eq!(told("# Modules\r\nmodule:name=crdt,ver=10,api=1,filters=0\r\n"), Some(CrdtModule));
        let others = "# Modules\r\nmodule:name=bf,ver=20,api=1\r\n# Replication\r\nrole:slave\r\nmaster_host:10.0.0.1\r\nnote\r\n";
        assert_eq!((told(others), told("")), (None, None));
    }
}
