//! Rows of results, as a table for people and a file for programs.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Id for programs, which does not change with the wording.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Description of the measured quantity.
    pub what: String,
    /// Tidegate's number.
    pub ours: f64,
    /// Name of the peer.
    pub peer: String,
    /// The peer's number.
    pub theirs: f64,
    /// Unit of both numbers.
    pub unit: String,
    /// Ratio, above 1 if Tidegate is better.
    pub ratio: f64,
}

impl Row {
    /// A row in which the smaller number is better.
    pub fn smaller_is_better(what: impl Into<String>, ours: f64, peer: &str, theirs: f64, unit: &str) -> Row {
        Row { id: None, what: what.into(), ours, peer: peer.into(), theirs, unit: unit.into(), ratio: theirs / ours }
    }

    /// A row in which the larger number is better.
    pub fn larger_is_better(what: impl Into<String>, ours: f64, peer: &str, theirs: f64, unit: &str) -> Row {
        Row { id: None, what: what.into(), ours, peer: peer.into(), theirs, unit: unit.into(), ratio: ours / theirs }
    }

    /// The same row, with an id.
    pub fn with_id(self, id: &str) -> Row {
        Row { id: Some(id.to_owned()), ..self }
    }

    fn cells(&self) -> [String; 6] {
        [
            self.what.clone(),
            short(self.ours),
            self.peer.clone(),
            short(self.theirs),
            self.unit.clone(),
            format!("{:.2}", self.ratio),
        ]
    }
}

/// Gives the id to the row with the lowest ratio: an id stands for the worst of several measurements.
pub fn lowest(id: &str, rows: Vec<Row>) -> Vec<Row> {
    lowest_of(id, rows, |_| true)
}

/// Like [`lowest`], among the rows that `is_meant` selects.
pub fn lowest_of(id: &str, mut rows: Vec<Row>, is_meant: impl Fn(&Row) -> bool) -> Vec<Row> {
    let meant = rows.iter_mut().filter(|row| is_meant(row));
    if let Some(row) = meant.min_by(|one, other| one.ratio.total_cmp(&other.ratio)) {
        row.id = Some(id.to_owned());
    }
    rows
}

/// All rows of one benchmark, printed as they are added.
#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Adds rows, and prints them under a headline.
    pub fn section(&mut self, headline: &str, rows: Vec<Row>) {
        println!("\n{headline}");
        print!("{}", table(&rows));
        self.rows.extend(rows);
    }

    /// Writes `target/bench/<name>.json` under the repository's root.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, name: &str) {
        let path = path_of(name);
        let json = serde_json::to_string_pretty(&self.rows).expect("rows are plain data");
        fs::create_dir_all(path.parent().expect("it has a folder")).expect("the folder can be made");
        fs::write(&path, json + "\n").expect("the file can be written");
        println!("\nwritten to target/bench/{name}.json");
    }
}

fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench").join(name).with_extension("json")
}

fn table(rows: &[Row]) -> String {
    let head = ["what", "ours", "peer", "theirs", "unit", "ratio"].map(String::from);
    let lines: Vec<_> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let [w0, w1, w2, w3, w4, w5] = widths;
    let print = |[what, ours, peer, theirs, unit, ratio]: &[String; 6]| {
        format!("  {what:w0$}  {ours:>w1$}  {peer:w2$}  {theirs:>w3$}  {unit:w4$}  {ratio:>w5$}\n")
    };
    lines.iter().map(print).collect()
}

fn short(number: f64) -> String {
    match number.abs() {
        large if large >= 1000.0 => format!("{number:.0}"),
        medium if medium >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}
