//! Tidegate's CSV: a header that names the columns, then one request per line.

use tidegate_core::Timestamp;

use super::LineError;
use super::columns::{Column, Columns, Row, cells};
use super::entry::{AccessEntry, FieldSource, address, present};
use super::time;

impl Columns {
    /// The request of a line.
    pub(super) fn entry<'l>(&'l self, line: &'l str) -> Result<AccessEntry<'l>, LineError> {
        let mut entry = AccessEntry::at(Timestamp::EPOCH, false);
        let mut cells = cells(line);
        for column in &self.0 {
            let text = cells.next().ok_or(LineError::MissingCells)??;
            match column {
                Column::Time => {
                    let stamp = time::any(text.trim().as_bytes()).ok_or(LineError::BadTime)?;
                    (entry.at, entry.whole_second) = (stamp.at, stamp.whole);
                }
                Column::Address => entry.address = address(&text),
                Column::Method => entry.method = present(text),
                Column::Path => entry.target = present(text).or(entry.target.take()),
                Column::Host => entry.host = present(text),
                Column::User => entry.user = present(text),
                Column::ApiKey => entry.api_key = present(text),
                Column::Tier => entry.tier = present(text),
                Column::Cost if text.trim().is_empty() => {}
                Column::Cost => entry.cost = Some(text.trim().parse().map_err(|_| LineError::BadCost)?),
                Column::Duration => {
                    let millis = text.trim().parse::<f64>().ok().filter(|millis| (0.0..1e12).contains(millis));
                    entry.took = millis.map(|millis| std::time::Duration::from_secs_f64(millis / 1e3).into());
                }
                Column::Header(_) | Column::Claim(_) => {}
            }
        }
        entry.more = FieldSource::Row(Row { columns: self, line });
        Ok(entry)
    }
}
