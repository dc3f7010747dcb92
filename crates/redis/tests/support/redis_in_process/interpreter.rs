//! Lua as embedded in Redis: version 5.1, with `redis.call` and the library `struct`.

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Value};

use super::dataset::Dataset;
use super::protocol::ServerReply;
use super::struct_library;

pub(super) struct Interpreter {
    lua: Lua,
}

impl Interpreter {
    /// An interpreter whose scripts operate on this data.
    pub(super) fn new(dataset: &Rc<RefCell<Dataset>>) -> Interpreter {
        let lua = Lua::new();
        install(&lua, dataset).unwrap();
        Interpreter { lua }
    }

    pub(super) fn compile(&self, text: &str) -> Function {
        self.lua.load(text).set_name("@user_script").into_function().unwrap()
    }

    /// Runs a script to its end.
    pub(super) fn call(&self, script: &Function, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> ServerReply {
        let list = |words: &[Vec<u8>]| -> mlua::Result<_> {
            let strings = words.iter().map(|word| self.lua.create_string(word)).collect::<mlua::Result<Vec<_>>>()?;
            self.lua.create_sequence_from(strings)
        };
        let run = || -> mlua::Result<Value> {
            self.lua.globals().set("KEYS", list(keys)?)?;
            self.lua.globals().set("ARGV", list(arguments)?)?;
            script.call(())
        };
        to_reply(run().unwrap_or_else(|error| panic!("the script failed: {error}")))
    }
}

fn install(lua: &Lua, dataset: &Rc<RefCell<Dataset>>) -> mlua::Result<()> {
    let redis = lua.create_table()?;
    for (name, raises) in [("call", true), ("pcall", false)] {
        let dataset = Rc::clone(dataset);
        let run = move |lua: &Lua, words: MultiValue| {
            let words: Vec<Vec<u8>> = words.iter().map(argument).collect();
            match dataset.borrow_mut().run(&words) {
                ServerReply::Error(text) if raises => Err(mlua::Error::runtime(text)),
                reply => to_lua(lua, &reply),
            }
        };
        redis.set(name, lua.create_function(run)?)?;
    }
    lua.globals().set("redis", redis)?;
    struct_library::install(lua)
}

/// A value as an argument of a command.
fn argument(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) if number.fract() == 0.0 => format!("{number:.0}").into_bytes(),
        other => panic!("{other:?} as an argument of a command"),
    }
}

fn to_lua(lua: &Lua, reply: &ServerReply) -> mlua::Result<Value> {
    let table = |name: &str, text: &str| lua.create_table_from([(name, text)]).map(Value::Table);
    match reply {
        ServerReply::Status(text) => table("ok", text),
        ServerReply::Error(text) => table("err", text),
        #[expect(clippy::cast_precision_loss, reason = "all numbers of Lua 5.1 are doubles")]
        ServerReply::Integer(number) => Ok(Value::Number(*number as f64)),
        ServerReply::Bulk(bytes) => lua.create_string(bytes).map(Value::String),
        ServerReply::Nil => Ok(Value::Boolean(false)),
        ServerReply::Array(items) => {
            let items = items.iter().map(|item| to_lua(lua, item)).collect::<mlua::Result<Vec<_>>>()?;
            lua.create_sequence_from(items).map(Value::Table)
        }
    }
}

fn to_reply(value: Value) -> ServerReply {
    match value {
        Value::String(text) => ServerReply::Bulk(text.as_bytes().to_vec()),
        Value::Integer(number) => ServerReply::Integer(number),
        Value::Table(items) => {
            ServerReply::Array(items.sequence_values::<Value>().map(|item| to_reply(item.unwrap())).collect())
        }
        other => panic!("the script returned {other:?}"),
    }
}
