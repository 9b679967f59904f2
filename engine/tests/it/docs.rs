//! `docs/format.md` says what the code does: its tables about the tree file
//! are compared with the layouts, the constants and the tables of a store.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use pontoon_engine::format::LAYOUTS;
use pontoon_engine::inspect::{CONSTANTS, TABLES};

/// Rows of the tables under each heading, without those of the column names.
fn tables() -> BTreeMap<String, Vec<Vec<String>>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/format.md");
    let mut heading = String::new();
    let mut tables: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim().replace('`', "");
        } else if let Some(row) = line.strip_prefix('|') {
            let cells = row.trim_end_matches('|').split('|');
            let cells: Vec<_> = cells.map(|cell| cell.trim().replace('`', "")).collect();
            match cells[0].starts_with('-') {
                // What came before the dashes are names.
                true => drop(tables.entry(heading.clone()).or_default().pop()),
                false => tables.entry(heading.clone()).or_default().push(cells),
            }
        }
    }
    tables
}

#[test]
fn the_format_document_has_every_structure_of_a_tree_file_as_it_is() {
    let tables = tables();
    for layout in LAYOUTS {
        let rows = tables.get(layout.name);
        let rows = rows.unwrap_or_else(|| panic!("no table under the heading {}", layout.name));
        let written: Vec<_> = rows.iter().map(|row| row[..3].to_vec()).collect();
        let real: Vec<_> = layout
            .fields
            .iter()
            .map(|field| {
                vec![
                    field.offset.to_string(),
                    field.bytes.to_string(),
                    field.name.to_owned(),
                ]
            })
            .collect();
        assert_eq!(written, real, "{}", layout.name);
        let has_meaning = rows.iter().all(|row| row[3].len() > 5);
        assert!(has_meaning, "{}: every field is explained", layout.name);
    }
}

#[test]
fn the_format_document_has_every_constant_of_a_tree_file_as_it_is() {
    let tables = tables();
    let rows = tables["Constants of tree files"].iter();
    let written: Vec<_> = rows.map(|row| (row[0].clone(), row[1].clone())).collect();
    let shown = |(name, value): &(&str, u64)| {
        let value = match name.ends_with("_MAGIC") {
            true => format!("{value:#x}"),
            false => value.to_string(),
        };
        ((*name).to_owned(), value)
    };
    assert_eq!(written, CONSTANTS.iter().map(shown).collect::<Vec<_>>());
}

#[test]
fn the_format_document_has_every_table_of_a_store() {
    let tables = tables();
    let written: Vec<_> = tables["Tables"].iter().map(|row| &row[0]).collect();
    assert_eq!(written, TABLES);
}

/// Every test that `docs/semantics.md` names is there.
#[test]
fn the_promises_have_their_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("../docs/semantics.md")).unwrap();
    let mut named = 0;
    for name in text.split('`').filter(|name| name.contains("::")) {
        let (module, test) = name.rsplit_once("::").unwrap();
        let file = match module {
            "evaluate::tests" => root.join("src/evaluate/tests.rs"),
            module => root.join(format!("tests/it/{module}.rs")),
        };
        let source = fs::read_to_string(&file).unwrap_or_else(|_| panic!("{name}: no {file:?}"));
        assert!(
            source.contains(&format!("#[test]\nfn {test}(")),
            "{name} is not a test"
        );
        named += 1;
    }
    assert!(named > 15, "{named}");
}
