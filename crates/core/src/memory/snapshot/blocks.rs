//! Blocks of bytes with a length and a checksum.

use std::io::{self, Read, Write};

use super::{BlockKind, MAGIC, SnapshotError, VERSION};

/// Maximum length of a block: many times the size of a shard with long logs.
const LONGEST: u32 = 1 << 30;
/// The number of bytes read at once, so that a false length cannot allocate more memory than there are bytes.
const CHUNK: u64 = 1 << 20;

pub(super) fn write_head(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())
}

pub(super) fn read_head(input: &mut impl Read) -> Result<(), SnapshotError> {
    let mut magic = [0; MAGIC.len()];
    match input.read_exact(&mut magic) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(SnapshotError::Foreign),
        other => other?,
    }
    if magic != MAGIC {
        return Err(SnapshotError::Foreign);
    }
    let mut version = [0; 4];
    exact(input, &mut version)?;
    match u32::from_le_bytes(version) {
        VERSION => Ok(()),
        version => Err(SnapshotError::Version { version }),
    }
}

/// Writes a block: its kind, its length, its bytes, and a checksum of all three.
pub(super) fn write(out: &mut impl Write, kind: BlockKind, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= LONGEST);
    let Some(length) = length else {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the state of one shard is larger than 1 GiB"));
    };
    let head = head(kind as u8, length);
    out.write_all(&head)?;
    out.write_all(bytes)?;
    out.write_all(&checksum(&head, bytes).to_le_bytes())
}

/// Reads the next block.
pub(super) fn read(input: &mut impl Read) -> Result<(BlockKind, Vec<u8>), SnapshotError> {
    let mut head = [0; 5];
    exact(input, &mut head)?;
    let [kind, length @ ..] = head;
    let length = u32::from_le_bytes(length);
    let kinds = [BlockKind::Store, BlockKind::Shard, BlockKind::End];
    let kind = kinds.into_iter().find(|known| *known as u8 == kind).ok_or(SnapshotError::Damaged)?;
    if length > LONGEST {
        return Err(SnapshotError::Damaged);
    }
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < u64::from(length) {
        let wanted = (u64::from(length) - bytes.len() as u64).min(CHUNK);
        if input.take(wanted).read_to_end(&mut bytes)? == 0 {
            return Err(SnapshotError::Torn);
        }
    }
    let mut sum = [0; 4];
    exact(input, &mut sum)?;
    if u32::from_le_bytes(sum) != checksum(&head, &bytes) {
        return Err(SnapshotError::Damaged);
    }
    Ok((kind, bytes))
}

fn head(kind: u8, length: u32) -> [u8; 5] {
    let [a, b, c, d] = length.to_le_bytes();
    [kind, a, b, c, d]
}

fn exact(input: &mut impl Read, bytes: &mut [u8]) -> Result<(), SnapshotError> {
    input.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => SnapshotError::Torn,
        _ => SnapshotError::Io(error),
    })
}

/// CRC-32 (IEEE 802.3), byte by byte.
fn checksum(head: &[u8], bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| TABLE[usize::from(sum.to_le_bytes()[0] ^ byte)] ^ (sum >> 8);
    !head.iter().chain(bytes).fold(!0, step)
}

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { 0xedb8_8320 ^ (sum >> 1) } else { sum >> 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(checksum(b"", b"123456789"), 0xcbf4_3926);
        assert_eq!(checksum(b"1234", b"56789"), 0xcbf4_3926);
    }
}
