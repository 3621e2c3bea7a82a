//! The nodes of a filter or prioritize call: their names, or the whole objects.

use super::field_names::AnyCase;
use crate::annotation_keys::REGISTER;
use crate::pod::OrNull;
use model::followed_node::MAX_CLUSTER_NODES;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// The candidate nodes for the pod, in the order of the call.
#[derive(Clone, Debug)]
pub enum CandidateNodes<'a> {
    /// Their names alone: the extender is `nodeCacheCapable`.
    Names(CandidateNames<'a>),
    /// The whole Nodes.
    Objects(Vec<CandidateNode<'a>>),
}

/// The names of a call, with the text that contains them.
#[derive(Clone, Debug)]
pub struct CandidateNames<'a> {
    /// The names.
    pub names: Vec<Cow<'a, str>>,
    /// The whole call.
    pub(super) call: &'a str,
}

/// One Node of a call that has the whole Nodes.
#[derive(Clone, Debug)]
pub struct CandidateNode<'a> {
    /// The name.
    pub name: Cow<'a, str>,
    /// The register, as in the annotation.
    pub register: Option<Cow<'a, str>>,
    /// The object, as in the call.
    pub object: &'a RawValue,
}

impl<'a> CandidateNodes<'a> {
    /// The number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            CandidateNodes::Names(list) => list.names.len(),
            CandidateNodes::Objects(nodes) => nodes.len(),
        }
    }

    /// Whether there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the node at this place.
    #[must_use]
    pub fn name(&self, place: usize) -> Option<&str> {
        match self {
            CandidateNodes::Names(list) => list.names.get(place).map(AsRef::as_ref),
            CandidateNodes::Objects(nodes) => nodes.get(place).map(|node| node.name.as_ref()),
        }
    }

    /// All names, in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|place| self.name(place).unwrap_or_default())
    }

    /// The text of the call from the name at place `first` to the name at place `last`, with quotation marks and
    /// commas. `None` if the names are not neighbours in the text, or if one of them is not borrowed and so has
    /// escapes.
    pub(super) fn written(&self, first: usize, last: usize) -> Option<&'a str> {
        let CandidateNodes::Names(CandidateNames { names, call }) = self else { return None };
        let borrowed = |place: usize| match names.get(place) {
            Some(Cow::Borrowed(name)) => Some((name.as_ptr().addr().checked_sub(call.as_ptr().addr())?, name.len())),
            _ => None,
        };
        let (begin, length) = borrowed(first)?;
        let mut end = begin + length;
        for place in first + 1..=last {
            let (next, length) = borrowed(place)?;
            // Between two neighbours there are three bytes: two quotation marks and a comma.
            if next != end + 3 {
                return None;
            }
            end = next + length;
        }
        call.get(begin.checked_sub(1)?..end + 1)
    }

    /// The object of the node at this place; `None` if the call has only names.
    #[must_use]
    pub fn object(&self, place: usize) -> Option<&'a RawValue> {
        match self {
            CandidateNodes::Names(_) => None,
            CandidateNodes::Objects(nodes) => nodes.get(place).map(|node| node.object),
        }
    }
}

/// A list of at most [`MAX_CLUSTER_NODES`] items.
#[derive(Debug)]
pub(super) struct NodeItems<T>(pub(super) Vec<T>);

impl<T> Default for NodeItems<T> {
    fn default() -> Self {
        NodeItems(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for NodeItems<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T>(Vec<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
            type Value = NodeItems<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<NodeItems<T>, A::Error> {
                while let Some(item) = seq.next_element()? {
                    if self.0.len() == MAX_CLUSTER_NODES {
                        return Err(A::Error::custom(format_args!("has more than {MAX_CLUSTER_NODES} nodes")));
                    }
                    self.0.push(item);
                }
                Ok(NodeItems(self.0))
            }
        }
        deserializer.deserialize_seq(Items(Vec::new()))
    }
}

/// A text that is borrowed if it has no escapes. (`Cow` alone borrows only as a field of a struct.)
#[derive(Debug)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// The list of whole Nodes: `{"metadata":{},"items":[…]}`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeList<'a> {
    #[serde(borrow)]
    pub(super) items: OrNull<NodeItems<&'a RawValue>>,
}

/// The list of whole Nodes, in upper or lower case.
pub(super) type AnyCaseNodeList<'a> = AnyCase<NodeList<'a>>;

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    annotations: OrNull<NodeAnnotations<'a>>,
}

/// The annotations of a Node that are read.
#[derive(Debug, Default)]
struct NodeAnnotations<'a> {
    register: Option<Cow<'a, str>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for NodeAnnotations<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Annotations;
        impl<'de> Visitor<'de> for Annotations {
            type Value = NodeAnnotations<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NodeAnnotations<'de>, A::Error> {
                let mut found = NodeAnnotations::default();
                while let Some(Text(key)) = map.next_key()? {
                    if key == REGISTER {
                        found.register = Some(map.next_value::<Text<'_>>()?.0);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(found)
            }
        }
        deserializer.deserialize_map(Annotations)
    }
}

impl<'a> CandidateNode<'a> {
    /// Reads one Node.
    pub(super) fn read(object: &'a RawValue) -> Result<CandidateNode<'a>, serde_json::Error> {
        let Object { metadata: Metadata { name, annotations } } = serde_json::from_str(object.get())?;
        Ok(CandidateNode { name, register: annotations.0.register, object })
    }
}
