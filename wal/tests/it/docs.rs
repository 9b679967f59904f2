//! `docs/format.md` says what the code does: its tables are compared with the
//! layouts, the constants and the decision table.

use std::collections::BTreeMap;

use pontoon_wal::format::{CONSTANTS, LAYOUTS};
use pontoon_wal::inspect::decision_table;

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/format.md");
    std::fs::read_to_string(path).unwrap()
}

/// Rows of the tables under each heading, cell by cell, without code marks.
fn tables(document: &str) -> BTreeMap<String, Vec<Vec<String>>> {
    let mut heading = String::new();
    let mut tables: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
    for line in document.lines() {
        if let Some(title) = line.strip_prefix('#') {
            heading = title.trim_start_matches('#').trim().replace('`', "");
        } else if let Some(row) = line.strip_prefix('|') {
            let cells: Vec<_> = row
                .trim_end_matches('|')
                .split('|')
                .map(|cell| cell.trim().replace('`', ""))
                .collect();
            if !cells[0].starts_with('-') {
                tables.entry(heading.clone()).or_default().push(cells);
            }
        }
    }
    tables
}

#[test]
fn the_format_document_has_every_structure_as_it_is() {
    let tables = tables(&document());
    for layout in LAYOUTS {
        let rows = tables
            .get(layout.name)
            .unwrap_or_else(|| panic!("no table under the heading {}", layout.name));
        let written: Vec<_> = rows[1..]
            .iter()
            .map(|row| (row[0].clone(), row[1].clone(), row[2].clone()))
            .collect();
        let real: Vec<_> = layout
            .fields
            .iter()
            .map(|field| {
                (
                    field.offset.to_string(),
                    field.bytes.to_string(),
                    field.name.to_owned(),
                )
            })
            .collect();
        assert_eq!(written, real, "{}", layout.name);
        let has_meaning = rows[1..].iter().all(|row| row[3].len() > 5);
        assert!(has_meaning, "{}: every field is explained", layout.name);
    }
}

#[test]
fn the_format_document_has_every_constant_as_it_is() {
    let tables = tables(&document());
    let written: Vec<_> = tables["Constants"][1..]
        .iter()
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    let real: Vec<_> = CONSTANTS
        .iter()
        .map(|(name, value)| {
            let magic = name.ends_with("_MAGIC");
            let value = match magic {
                true => format!("{value:#x}"),
                false => value.to_string(),
            };
            ((*name).to_owned(), value)
        })
        .collect();
    assert_eq!(written, real);
}

#[test]
fn the_format_document_has_the_decision_table_as_it_is() {
    let tables = tables(&document());
    let written: Vec<_> = tables["Decision table"][1..]
        .iter()
        .map(|row| [row[0].clone(), row[1].clone(), row[2].clone()])
        .collect();
    assert_eq!(written, decision_table());
}
