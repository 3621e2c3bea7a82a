//! Parses settings one by one and collects the mistakes. It also parses the settings that several commands read in
//! the same way.

use super::layer::{Origin, Problem, RawValue};
use super::value::{self, Why};
use serve::server::certificate::Tls;
use std::collections::BTreeMap;
use wire::resource::ResourceOverrides;

/// Parses settings one by one and collects the mistakes.
pub(super) struct Reader<'a> {
    pub(super) values: &'a BTreeMap<&'static str, RawValue>,
    pub(super) problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(values: &'a BTreeMap<&'static str, RawValue>) -> Reader<'a> {
        Reader { values, problems: Vec::new() }
    }

    pub(super) fn take<T>(&mut self, name: &'static str, parse: impl FnOnce(&str) -> Result<T, Why>) -> Option<T> {
        let Some(values) = self.values.get(name) else {
            self.problems.push(Problem::NotASetting(name));
            return None;
        };
        match parse(&values.text) {
            Ok(value) => Some(value),
            Err(why) => {
                let (text, origin) = (values.text.chars().take(120).collect(), values.origin.clone());
                self.problems.push(Problem::Value { name, text, origin, why });
                None
            }
        }
    }

    /// The value of a setting that counts only if a source sets it; `Some(None)` if no source does.
    pub(super) fn take_set<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, Why>,
    ) -> Option<Option<T>> {
        let is_set = self.values.get(name).is_some_and(|value| value.origin != Origin::Default);
        self.take(name, parse).map(|value| Some(value).filter(|_| is_set))
    }

    /// The values of two keys that must be given together.
    pub(super) fn certificate_pair(&mut self, cert: &'static str, key: &'static str) -> Option<Option<Tls>> {
        let mut path = |name| self.take(name, |text| value::unless_none(text, value::path));
        match (path(cert), path(key)) {
            (Some(Some(chain)), Some(Some(key))) => Some(Some(Tls { chain, key, client_ca: None })),
            (Some(None), Some(None)) => Some(None),
            (Some(_), Some(_)) => {
                let why = format!("{cert} and {key} belong together: give both, or none for plain HTTP");
                self.problems.push(Problem::Together(why));
                None
            }
            _ => None,
        }
    }

    pub(super) fn resources(&mut self) -> Option<ResourceOverrides> {
        let mut name = |key| self.take(key, |text| value::unless_auto(text, value::resource));
        let (count, memory) = (name("resource-name"), name("resource-name-memory"));
        let memory_percentage = name("resource-name-memory-percentage");
        let (cores, priority) = (name("resource-name-cores"), name("resource-name-priority"));
        Some(ResourceOverrides {
            count: count?,
            memory: memory?,
            memory_percentage: memory_percentage?,
            cores: cores?,
            priority: priority?,
        })
    }
}
