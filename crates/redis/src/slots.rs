//! Hash slots of Redis Cluster.

/// The number of slots of a cluster.
pub(crate) const SLOTS: usize = 16_384;

/// The slot of a key: the CRC16, modulo 16 384, of the text between its first `{` and the next `}`. Without such text, the
/// CRC16 of the whole key.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(tag(key)) % 16_384
}

fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|&byte| byte == b'}') {
        None | Some(0) => key,
        Some(close) => &rest[..close],
    }
}

/// CRC-16/XMODEM: polynomial 0x1021, initial value 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0_u16;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_that_redis_names() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
    }

    #[test]
    fn a_tag_decides_where_a_key_lies() {
        assert_eq!(slot_of(b"a{user}b"), slot_of(b"user"));
        assert_eq!(slot_of(b"{user}x{other}"), slot_of(b"user"));
        assert_ne!(slot_of(b"a{}b"), slot_of(b""), "an empty tag is none");
        assert_ne!(slot_of(b"a{b"), slot_of(b"b"), "a tag that does not end is none");
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
    }
}
