//! A msgpack writer for tests: values to bytes, the way the engines' encoder writes them.

/// A msgpack value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Nil,
    Int(i128),
    Float(f64),
    Text(&'static str),
    Bytes(Vec<u8>),
    Array(Vec<Value>),
    Map(Vec<(&'static str, Value)>),
}

impl From<i128> for Value {
    fn from(v: i128) -> Self {
        Value::Int(v)
    }
}

impl From<&'static str> for Value {
    fn from(v: &'static str) -> Self {
        Value::Text(v)
    }
}

impl<T: Into<Value>, const N: usize> From<[T; N]> for Value {
    fn from(items: [T; N]) -> Self {
        Value::Array(items.into_iter().map(Into::into).collect())
    }
}

impl Value {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Value::Nil => out.push(0xc0),
            Value::Int(v) => write_int(*v, out),
            Value::Float(v) => {
                out.push(0xcb);
                out.extend(v.to_be_bytes());
            }
            Value::Text(t) => {
                out.extend([0xd9, t.len() as u8]);
                out.extend(t.as_bytes());
            }
            Value::Bytes(b) => {
                out.extend([0xc4, b.len() as u8]);
                out.extend(b);
            }
            Value::Array(items) => {
                out.push(0xdc);
                out.extend((items.len() as u16).to_be_bytes());
                items.iter().for_each(|i| i.write(out));
            }
            Value::Map(pairs) => {
                out.push(0xde);
                out.extend((pairs.len() as u16).to_be_bytes());
                for (key, value) in pairs {
                    Value::Text(key).write(out);
                    value.write(out);
                }
            }
        }
    }
}

fn write_int(v: i128, out: &mut Vec<u8>) {
    if (0..128).contains(&v) || (-32..0).contains(&v) {
        out.push(v as u8);
    } else if v >= 0 {
        out.push(0xcf);
        out.extend((v as u64).to_be_bytes());
    } else {
        out.push(0xd3);
        out.extend((v as i64).to_be_bytes());
    }
}

/// A batch of these events, of rank 0.
pub(crate) fn batch(events: Vec<Value>) -> Vec<u8> {
    Value::Array(vec![Value::Float(1.5), Value::Array(events), Value::Int(0)]).encode()
}

/// A stored event as a map, `changes` over a plain store of one block `[1, 2, 3, 4]` named 10. A change to
/// [`Value::Nil`] keeps the key; `without` drops it.
pub(crate) fn stored_map(changes: Vec<(&'static str, Value)>) -> Value {
    let mut pairs: Vec<(&'static str, Value)> = vec![
        ("type", "BlockStored".into()),
        ("block_hashes", [10].into()),
        ("parent_block_hash", Value::Nil),
        ("token_ids", [1, 2, 3, 4].into()),
        ("block_size", 4.into()),
        ("lora_id", Value::Nil),
        ("medium", "GPU".into()),
    ];
    for (key, value) in changes {
        pairs.retain(|(k, _)| *k != key);
        pairs.push((key, value));
    }
    Value::Map(pairs)
}

/// A map without one key.
pub(crate) fn without(event: Value, key: &str) -> Value {
    match event {
        Value::Map(mut pairs) => {
            pairs.retain(|(k, _)| *k != key);
            Value::Map(pairs)
        }
        other => other,
    }
}
