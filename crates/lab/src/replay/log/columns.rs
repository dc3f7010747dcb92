//! The columns of Tidegate's CSV, which a header names.

use std::borrow::Cow;

use super::LineError;

/// The contents of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Time,
    Address,
    Method,
    Path,
    Host,
    User,
    ApiKey,
    Tier,
    Cost,
    Duration,
    Header(String),
    Claim(String),
}

/// The columns of a table, from left to right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Columns(pub(super) Vec<Column>);

impl Columns {
    /// Parses the header.
    pub(super) fn read(head: &str) -> Result<Columns, LineError> {
        let column = |name: Cow<'_, str>| {
            let name = name.trim();
            Ok(match name {
                "time" => Column::Time,
                "address" => Column::Address,
                "method" => Column::Method,
                "path" => Column::Path,
                "host" => Column::Host,
                "user" => Column::User,
                "api_key" => Column::ApiKey,
                "tier" => Column::Tier,
                "cost" => Column::Cost,
                "duration_ms" => Column::Duration,
                _ => match name.split_once(':') {
                    Some(("header", name)) if !name.is_empty() => Column::Header(name.to_owned()),
                    Some(("claim", name)) if !name.is_empty() => Column::Claim(name.to_owned()),
                    _ => return Err(LineError::UnknownColumn(name.into())),
                },
            })
        };
        let columns: Vec<Column> = cells(head).map(|cell| cell.and_then(column)).collect::<Result<_, _>>()?;
        if columns.contains(&Column::Time) { Ok(Columns(columns)) } else { Err(LineError::NoTimeColumn) }
    }

    /// Whether a line must be a header, because it has several columns and one of them is named like the time.
    pub(super) fn are_named_in(line: &str) -> bool {
        let names: Vec<_> = cells(line).map_while(Result::ok).collect();
        names.len() > 1 && names.iter().any(|name| name.trim() == "time")
    }
}

/// A line of a table, kept for rules that need a header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'l> {
    pub(super) columns: &'l Columns,
    pub(super) line: &'l str,
}

impl<'l> Row<'l> {
    fn cell(&self, wanted: impl Fn(&Column) -> bool) -> Option<Cow<'l, str>> {
        let number = self.columns.0.iter().position(wanted)?;
        cells(self.line).nth(number)?.ok().filter(|text| !text.is_empty())
    }

    pub(super) fn header(&self, name: &str) -> Option<Cow<'l, str>> {
        self.cell(|column| matches!(column, Column::Header(known) if known.eq_ignore_ascii_case(name)))
    }

    pub(super) fn claim(&self, name: &str) -> Option<Cow<'l, str>> {
        self.cell(|column| matches!(column, Column::Claim(known) if known == name))
    }
}

/// The cells of a line: plain, or in quotes with inner quotes doubled.
pub(super) fn cells(line: &str) -> impl Iterator<Item = Result<Cow<'_, str>, LineError>> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(quoted) = text.strip_prefix('"') else {
            let end = memchr::memchr(b',', text.as_bytes());
            rest = end.map(|end| &text[end + 1..]);
            return Some(Ok(Cow::Borrowed(&text[..end.unwrap_or(text.len())])));
        };
        let (mut from, mut doubled) = (0, false);
        loop {
            let Some(quote) = memchr::memchr(b'"', &quoted.as_bytes()[from..]).map(|at| from + at) else {
                rest = None;
                return Some(Err(LineError::OpenQuote));
            };
            if quoted.as_bytes().get(quote + 1) == Some(&b'"') {
                (from, doubled) = (quote + 2, true);
                continue;
            }
            let behind = &quoted[quote + 1..];
            rest = memchr::memchr(b',', behind.as_bytes()).map(|end| &behind[end + 1..]);
            let inside = &quoted[..quote];
            return Some(Ok(if doubled { Cow::Owned(inside.replace("\"\"", "\"")) } else { Cow::Borrowed(inside) }));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_may_be_quoted() {
        let all: Vec<_> = cells(r#"a,"b,c","say ""hi""",,"#).map(Result::unwrap).collect();
        assert_eq!(all, ["a", "b,c", r#"say "hi""#, "", ""]);
        assert_eq!(cells(r#"a,"open"#).nth(1), Some(Err(LineError::OpenQuote)));
    }

    #[test]
    fn a_head_names_what_is_known() {
        assert!(Columns::read("time,address,header:X-Tenant,claim:org").is_ok());
        assert_eq!(Columns::read("address,path"), Err(LineError::NoTimeColumn));
        assert_eq!(Columns::read("time,adress"), Err(LineError::UnknownColumn("adress".into())));
    }
}
