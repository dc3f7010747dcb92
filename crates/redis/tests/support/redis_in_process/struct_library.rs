//! The Lua library `struct` of Redis: numbers and strings as bytes. Supports only the formats that the script uses.

use mlua::{Lua, MultiValue, Value};

pub(super) fn install(lua: &Lua) -> mlua::Result<()> {
    let library = lua.create_table()?;
    library.set("pack", lua.create_function(pack)?)?;
    library.set("unpack", lua.create_function(unpack)?)?;
    lua.globals().set("struct", library)
}

/// An item of a format.
enum Item {
    /// An unsigned number of this many bytes, most significant first.
    Unsigned(usize),
    /// A whole string.
    Text,
}

/// The items of a format, which begins with `>`.
fn items(format: &[u8]) -> Vec<Item> {
    let mut rest = format.strip_prefix(b">").expect("numbers are written most significant byte first");
    let mut items = Vec::new();
    while let Some((&kind, after)) = rest.split_first() {
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let size = std::str::from_utf8(&after[..digits]).unwrap().parse().ok();
        items.push(match (kind, size) {
            (b'B', None) => Item::Unsigned(1),
            (b'I', Some(size)) => Item::Unsigned(size),
            (b'c', Some(0)) => Item::Text,
            _ => panic!("a format that is not simulated: {}", String::from_utf8_lossy(format)),
        });
        rest = &after[digits..];
    }
    items
}

fn pack(lua: &Lua, values: MultiValue) -> mlua::Result<Value> {
    let mut values = values.into_iter();
    let Some(Value::String(format)) = values.next() else { panic!("a format comes first") };
    let mut bytes = Vec::new();
    for item in items(&format.as_bytes()) {
        match (item, values.next()) {
            (Item::Unsigned(size), Some(value)) => {
                let number = number(&value);
                // Like C: rounds towards zero, and converts negative numbers to their two's complement.
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as C does")]
                let number = if number < 0.0 { (number as i64).cast_unsigned() } else { number as u64 };
                bytes.extend_from_slice(&number.to_be_bytes()[8 - size..]);
            }
            (Item::Text, Some(Value::String(text))) => bytes.extend_from_slice(&text.as_bytes()),
            _ => panic!("too few values for {format:?}"),
        }
    }
    lua.create_string(bytes).map(Value::String)
}

fn number(value: &Value) -> f64 {
    match value {
        #[expect(clippy::cast_precision_loss, reason = "all numbers of Lua 5.1 are doubles")]
        Value::Integer(number) => *number as f64,
        Value::Number(number) => *number,
        other => panic!("{other:?} is no number"),
    }
}

/// The values from a position, counted from 1, and the position after them.
fn unpack(_: &Lua, (format, bytes, from): (mlua::LuaString, mlua::LuaString, Option<f64>)) -> mlua::Result<MultiValue> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let mut at = from.unwrap_or(1.0) as usize - 1;
    let (format, bytes) = (format.as_bytes(), bytes.as_bytes());
    let mut values = Vec::new();
    for item in items(&format) {
        let Item::Unsigned(size) = item else { panic!("strings are not read") };
        let Some(part) = bytes.get(at..at + size) else { return Err(mlua::Error::runtime("data string too short")) };
        let number = part.iter().fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
        #[expect(clippy::cast_precision_loss, reason = "all numbers of Lua 5.1 are doubles")]
        values.push(Value::Number(number as f64));
        at += size;
    }
    #[expect(clippy::cast_precision_loss, reason = "an index")]
    values.push(Value::Number((at + 1) as f64));
    Ok(MultiValue::from(values))
}
