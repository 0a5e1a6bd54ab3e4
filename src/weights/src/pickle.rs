//! Reads pickles without executing anything.
//!
//! A pickle is a program that may call any function by name. This reader only accepts a fixed list of names, represents
//! calls as data, and refuses everything else. Source: Python's `pickletools`, protocols 2 to 5.

use std::collections::HashMap;

/// The names that a pickle may use. The reader calls none of them; each becomes a [`Node::Global`].
pub(crate) const ALLOWED: [(&str, &str); 47] = [
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("pathlib", "PosixPath"),
    // The module name of `pathlib` in Python 3.13.
    ("pathlib._local", "PosixPath"),
    ("torch", "BFloat16Storage"),
    ("torch", "BoolStorage"),
    ("torch", "ByteStorage"),
    ("torch", "CharStorage"),
    ("torch", "DoubleStorage"),
    ("torch", "FloatStorage"),
    ("torch", "HalfStorage"),
    ("torch", "IntStorage"),
    ("torch", "LongStorage"),
    ("torch", "ShortStorage"),
    ("torch", "Size"),
    ("torch", "bfloat16"),
    ("torch", "bool"),
    ("torch", "device"),
    ("torch", "float16"),
    ("torch", "float32"),
    ("torch", "float64"),
    ("torch", "int16"),
    ("torch", "int32"),
    ("torch", "int64"),
    ("torch", "int8"),
    ("torch", "uint8"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("builtins", "bytearray"),
    ("builtins", "dict"),
    ("builtins", "list"),
    ("builtins", "set"),
    ("builtins", "slice"),
    ("__builtin__", "set"),
    ("__builtin__", "dict"),
    ("__builtin__", "list"),
];

/// The maximum number of values, and of places on the stack and in the memo, of a pickle: they take 2 GiB. A pickle of a few bytes per value
/// would take far more memory than its file. The metadata of a checkpoint of 256 ranks with 100 000 chunks has a third of that.
const MAX_VALUES: usize = 1 << 25;
/// The maximum number of axes of a tensor. NumPy has the same limit.
const MAX_AXES: usize = 64;

/// The index of a value in a [`Pickle`].
pub(crate) type At = usize;

/// A value. Containers hold the indices of their values, so that deep nesting and cycles cause no recursion.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    None,
    Bool(bool),
    /// An integer, clamped to the range of the type.
    Int(i64),
    Float,
    Text(String),
    Bytes,
    /// A tuple, list or set.
    List(Vec<At>),
    Dict(Vec<(At, At)>),
    /// One of [`ALLOWED`].
    Global(&'static str, &'static str),
    /// A recorded call and the state of its result.
    Call {
        function: At,
        args: At,
        state: Option<At>,
        pairs: Vec<(At, At)>,
    },
    /// A reference to data outside of the pickle, such as the storage of a tensor.
    Persistent(At),
}

/// The values of a pickle.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pickle {
    nodes: Vec<Node>,
    /// The root value.
    pub root: At,
}

impl Pickle {
    /// Reads a pickle.
    ///
    /// # Errors
    /// The reason why the pickle is not valid, or the name that is not allowed; or it has more than [`MAX_VALUES`].
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        Self::read_values(bytes, MAX_VALUES)
    }

    fn read_values(bytes: &[u8], max: usize) -> Result<Self, String> {
        let (nodes, stack, marks, memo) = Default::default();
        Machine { bytes, at: 0, nodes, stack, marks, memo, max }.run()
    }

    pub fn node(&self, at: At) -> &Node {
        &self.nodes[at]
    }

    /// Returns the text of a string value.
    pub fn text(&self, at: At) -> Option<&str> {
        match self.node(at) {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns an integer that is not negative.
    pub fn size(&self, at: At) -> Option<u64> {
        match self.node(at) {
            Node::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Returns the items of a tuple, list or set.
    pub fn items(&self, at: At) -> Option<&[At]> {
        match self.node(at) {
            Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the pairs of a dict or `OrderedDict`.
    pub fn pairs(&self, at: At) -> Option<&[(At, At)]> {
        match self.node(at) {
            Node::Dict(pairs) => Some(pairs),
            Node::Call { function, pairs, .. } => {
                matches!(self.node(*function), Node::Global("collections", _)).then_some(&pairs[..])
            }
            _ => None,
        }
    }

    /// Returns the arguments of a call of `module.name`.
    pub fn call(&self, at: At, module: &str, name: &str) -> Option<&[At]> {
        match self.node(at) {
            Node::Call { function, args, .. } if *self.node(*function) == global(module, name)? => self.items(*args),
            _ => None,
        }
    }

    /// Returns a field of an object whose state is a dict.
    pub fn field(&self, at: At, name: &str) -> Option<At> {
        let Node::Call { state: Some(state), .. } = self.node(at) else { return None };
        self.get(*state, name)
    }

    /// Returns the value of a key of a dict.
    pub fn get(&self, at: At, key: &str) -> Option<At> {
        self.pairs(at)?.iter().rev().find(|(k, _)| self.text(*k) == Some(key)).map(|(_, value)| *value)
    }

    /// Returns the numbers of a `torch.Size` or a plain tuple; `None` also if a tensor cannot have so many axes.
    pub fn sizes(&self, at: At) -> Option<Vec<u64>> {
        let items = match self.call(at, "torch", "Size") {
            Some([only]) => self.items(*only)?,
            Some(_) => return None,
            None => self.items(at)?,
        };
        // A pickle can use one tuple of millions of numbers as the shape of every tensor.
        (items.len() <= MAX_AXES).then_some(())?;
        items.iter().map(|item| self.size(*item)).collect()
    }
}

fn global(module: &str, name: &str) -> Option<Node> {
    ALLOWED.iter().find(|known| **known == (module, name)).map(|(module, name)| Node::Global(module, name))
}

/// The stack machine that interprets the instructions of a pickle. It calls no function.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<At>,
    marks: Vec<usize>,
    memo: HashMap<u64, At>,
    /// The limit on all of the above together.
    max: usize,
}

impl<'a> Machine<'a> {
    fn run(mut self) -> Result<Pickle, String> {
        loop {
            let place = self.at;
            let op = self.take(1)?[0];
            if op == b'.' {
                let root = self.pop()?;
                return Ok(Pickle { nodes: self.nodes, root });
            }
            self.step(op).map_err(|why| if why.is_empty() { unknown(op, place) } else { why })?;
            if self.nodes.len() + self.stack.len() + self.marks.len() + self.memo.len() > self.max {
                return Err(format!("its pickle has more than {} values, which is the limit", self.max));
            }
        }
    }

    /// Interprets one instruction. An empty error means that the instruction is unknown.
    fn step(&mut self, op: u8) -> Result<(), String> {
        match op {
            // PROTO, FRAME
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(Node::None),
            0x88 => self.push(Node::Bool(true)),
            0x89 => self.push(Node::Bool(false)),
            b'J' => {
                let raw = self.take(4)?;
                self.push(Node::Int(i64::from(i32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]))));
            }
            b'K' => self.int(1)?,
            b'M' => self.int(2)?,
            0x8a => {
                let len = self.length(1)?;
                self.long(len)?;
            }
            0x8b => {
                let len = self.length(4)?;
                self.long(len)?;
            }
            b'G' => {
                self.take(8)?;
                self.push(Node::Float);
            }
            b'X' => self.string(4)?,
            0x8c => self.string(1)?,
            0x8d => self.string(8)?,
            b'T' => self.string(4)?,
            b'U' => self.string(1)?,
            b'B' => self.raw(4)?,
            b'C' => self.raw(1)?,
            0x8e | 0x96 => self.raw(8)?,
            b'}' => self.push(Node::Dict(Vec::new())),
            b']' | b')' | 0x8f => self.push(Node::List(Vec::new())),
            b't' | b'l' | 0x91 => {
                let items = self.above_mark()?;
                self.push(Node::List(items));
            }
            0x85..=0x87 => {
                let first = self
                    .stack
                    .len()
                    .checked_sub(usize::from(op - 0x84))
                    .ok_or("the stack has too few values for a tuple")?;
                if self.marks.last().is_some_and(|mark| *mark > first) {
                    return Err("a tuple extends across a mark".into());
                }
                let items = self.stack.split_off(first);
                self.push(Node::List(items));
            }
            b'd' => {
                let items = self.above_mark()?;
                let pairs = pairs(&items)?;
                self.push(Node::Dict(pairs));
            }
            b'a' => {
                let item = self.pop()?;
                self.extend(vec![item])?;
            }
            b'e' | 0x90 => {
                let items = self.above_mark()?;
                self.extend(items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(vec![(key, value)])?;
            }
            b'u' => {
                let items = self.above_mark()?;
                self.set(pairs(&items)?)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(&module, &name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Node::Text(module), Node::Text(name)) = (&self.nodes[module], &self.nodes[name]) else {
                    return Err("the name of a global is not a string".into());
                };
                let (module, name) = (module.clone(), name.clone());
                self.global(&module, &name)?;
            }
            // REDUCE and NEWOBJ: the call is recorded, not made.
            b'R' | 0x81 => {
                let (args, function) = (self.pop()?, self.pop()?);
                self.call(function, args)?;
            }
            0x92 => {
                let (_keywords, args, function) = (self.pop()?, self.pop()?, self.pop()?);
                self.call(function, args)?;
            }
            b'b' => {
                let state = self.pop()?;
                let object = self.top()?;
                match &mut self.nodes[object] {
                    Node::Call { state: own, .. } => *own = Some(state),
                    _ => return Err("BUILD on a value that is not an object".into()),
                }
            }
            b'Q' => {
                let id = self.pop()?;
                self.push(Node::Persistent(id));
            }
            b'q' => self.remember(1)?,
            b'r' => self.remember(4)?,
            0x94 => {
                let (top, next) = (self.top()?, self.memo.len() as u64);
                self.memo.insert(next, top);
            }
            b'h' => self.recall(1)?,
            b'j' => self.recall(4)?,
            b'0' => drop(self.pop()?),
            b'1' => drop(self.above_mark()?),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            _ => return Err(String::new()),
        }
        Ok(())
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len()).ok_or("it is truncated")?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn unsigned(&mut self, len: usize) -> Result<u64, String> {
        Ok(self.take(len)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, len: usize) -> Result<usize, String> {
        usize::try_from(self.unsigned(len)?).map_err(|_| "it is truncated".into())
    }

    fn int(&mut self, len: usize) -> Result<(), String> {
        let number = self.unsigned(len)?;
        self.push(Node::Int(number as i64));
        Ok(())
    }

    /// Reads a little-endian number of any length in two's complement.
    fn long(&mut self, len: usize) -> Result<(), String> {
        let raw = self.take(len)?;
        let negative = raw.last().is_some_and(|byte| *byte >= 0x80);
        let sign = if negative { 0xff } else { 0 };
        let number = if raw.len() > 8 && (raw[8..].iter().any(|byte| *byte != sign) || (raw[7] >= 0x80) != negative) {
            if negative { i64::MIN } else { i64::MAX }
        } else {
            let mut full = [sign; 8];
            let kept = raw.len().min(8);
            full[..kept].copy_from_slice(&raw[..kept]);
            i64::from_le_bytes(full)
        };
        self.push(Node::Int(number));
        Ok(())
    }

    fn string(&mut self, len: usize) -> Result<(), String> {
        let len = self.length(len)?;
        let text = String::from_utf8_lossy(self.take(len)?).into_owned();
        self.push(Node::Text(text));
        Ok(())
    }

    fn raw(&mut self, len: usize) -> Result<(), String> {
        let len = self.length(len)?;
        self.take(len)?;
        self.push(Node::Bytes);
        Ok(())
    }

    fn line(&mut self) -> Result<String, String> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|byte| *byte == b'\n').ok_or("it is truncated")?;
        let line = String::from_utf8_lossy(&rest[..len]).into_owned();
        self.at += len + 1;
        Ok(line)
    }

    fn push(&mut self, node: Node) {
        self.nodes.push(node);
        self.stack.push(self.nodes.len() - 1);
    }

    /// Returns the lowest stack index that may be popped: the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<At, String> {
        if self.stack.len() <= self.floor() {
            return Err("it pops from an empty stack".into());
        }
        self.stack.pop().ok_or_else(|| "it pops from an empty stack".into())
    }

    fn top(&self) -> Result<At, String> {
        self.stack.last().copied().ok_or_else(|| "it reads from an empty stack".into())
    }

    fn above_mark(&mut self) -> Result<Vec<At>, String> {
        let mark = self.marks.pop().ok_or("the stack has no mark")?;
        Ok(self.stack.split_off(mark))
    }

    fn extend(&mut self, items: Vec<At>) -> Result<(), String> {
        let list = self.top()?;
        match &mut self.nodes[list] {
            Node::List(own) => own.extend(items),
            // A list subclass. Its items are not needed.
            Node::Call { .. } => {}
            _ => return Err("items are added to a value that is not a list".into()),
        }
        Ok(())
    }

    fn set(&mut self, new: Vec<(At, At)>) -> Result<(), String> {
        let dict = self.top()?;
        match &mut self.nodes[dict] {
            Node::Dict(pairs) | Node::Call { pairs, .. } => pairs.extend(new),
            _ => return Err("pairs are added to a value that is not a dict".into()),
        }
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), String> {
        let shown = |text: &str| text.escape_debug().take(80).collect::<String>();
        let node = global(module, name).ok_or_else(|| {
            format!("it uses {}.{}, which is not in the list of allowed names", shown(module), shown(name))
        })?;
        self.push(node);
        Ok(())
    }

    fn call(&mut self, function: At, args: At) -> Result<(), String> {
        if !matches!(self.nodes[function], Node::Global(..)) {
            return Err("it calls a value that is not a function".into());
        }
        self.push(Node::Call { function, args, state: None, pairs: Vec::new() });
        Ok(())
    }

    fn remember(&mut self, len: usize) -> Result<(), String> {
        let key = self.unsigned(len)?;
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, len: usize) -> Result<(), String> {
        let key = self.unsigned(len)?;
        let at = self.memo.get(&key).copied().ok_or("it reads a memo entry that is not set")?;
        self.stack.push(at);
        Ok(())
    }
}

fn pairs(items: &[At]) -> Result<Vec<(At, At)>, String> {
    match items.as_chunks::<2>() {
        (pairs, []) => Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect()),
        _ => Err("a dict has a key without a value".into()),
    }
}

fn unknown(op: u8, place: usize) -> String {
    format!("instruction 0x{op:02x} at byte {place} is unknown")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_read() {
        // {'a': (1, -2, True), 'b': [None]}
        let pickle =
            Pickle::read(b"\x80\x02}q\x00(X\x01\x00\x00\x00aK\x01J\xfe\xff\xff\xff\x88\x87X\x01\x00\x00\x00b]Nau.")
                .unwrap();
        let a = pickle.get(pickle.root, "a").unwrap();
        let numbers: Vec<_> = pickle.items(a).unwrap().iter().map(|at| pickle.node(*at).clone()).collect();
        assert_eq!(numbers, [Node::Int(1), Node::Int(-2), Node::Bool(true)]);
        let b = pickle.get(pickle.root, "b").unwrap();
        assert_eq!(pickle.node(pickle.items(b).unwrap()[0]), &Node::None);
    }

    #[test]
    fn integers_of_any_length_are_read() {
        let number = |raw: &[u8]| {
            let mut bytes = vec![0x8a, raw.len() as u8];
            bytes.extend(raw);
            bytes.push(b'.');
            let pickle = Pickle::read(&bytes).unwrap();
            pickle.node(pickle.root).clone()
        };
        assert_eq!(number(&[]), Node::Int(0));
        assert_eq!(number(&[0, 0, 0, 0, 1]), Node::Int(1 << 32));
        assert_eq!(number(&[0xff]), Node::Int(-1));
        assert_eq!(number(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0]), Node::Int(i64::MAX));
        assert_eq!(number(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), Node::Int(-1));
    }

    #[test]
    fn a_name_that_is_not_allowed_is_refused_and_named() {
        let pickles = [
            &b"cos\nsystem\n(X\x02\x00\x00\x00id\x85R."[..],
            b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
            // An allowed name does not give access to attributes.
            b"cbuiltins\ngetattr\n.",
            b"\x80\x04\x8c\x0ctorch._utils\x8c\x03\x61.b\x93.",
            b"K\x01)R.",
        ];
        insta::assert_snapshot!(pickles.map(|bytes| Pickle::read(bytes).unwrap_err()).join("\n"));
    }

    #[test]
    fn a_pickle_has_a_limited_number_of_values_whatever_makes_them() {
        // None, empty lists, marks, duplicates, and memo entries.
        for ops in [&b"N"[..], b"]", b"(", b"2", b"h\x00", b"\x94"] {
            let pickle = [&b"Nq\x00"[..], &ops.repeat(1000), b"."].concat();
            let why = Pickle::read_values(&pickle, 500).unwrap_err();
            assert!(why.contains("more than 500 values"), "{ops:?}: {why}");
        }
        assert!(Pickle::read_values(&[&b"N0".repeat(200)[..], b"N."].concat(), 500).is_ok());
    }

    #[test]
    fn deeply_nested_and_cyclic_pickles_do_not_overflow_the_stack() {
        let mut deep = vec![b']'; 300_000];
        deep.extend(vec![b'a'; 299_999]);
        deep.push(b'.');
        drop(Pickle::read(&deep).unwrap());
        let circle = Pickle::read(b"]q\x00h\x00a.").unwrap();
        assert_eq!(circle.items(circle.root), Some(&[circle.root][..]));
    }

    proptest! {
        #[test]
        fn no_pickle_makes_the_reader_panic(ops in proptest::collection::vec(
            proptest::sample::select(b"(N\x88JKM\x8a\x8bGX\x8cTUBC})]\x8ftl\x91\x85\x86\x87daesuc\x93R\x81\x92bQqr\x94hj012\x00\x01.\n".to_vec()), 0..60,
        )) {
            let _ = Pickle::read(&ops);
        }
    }
}
