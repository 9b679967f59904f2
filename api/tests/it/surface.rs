//! Every name and number of our `.proto` files, against etcd's.

use std::collections::BTreeSet;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

const ETCD: &str = include_str!("../golden/surface.txt");

/// The package that etcd has nothing like.
const OUR_OWN: &str = "pontoonpb";

/// Messages that no service has: etcd's members use them among themselves.
const INTERNAL: [&str; 4] = [
    "etcdserverpb.LeaseCheckpoint",
    "etcdserverpb.LeaseCheckpointRequest",
    "etcdserverpb.LeaseCheckpointResponse",
    "etcdserverpb.DowngradeVersionTestRequest",
];

#[test]
fn names_and_numbers_are_etcds() {
    let ours = surface();
    let theirs: BTreeSet<_> = ETCD
        .lines()
        .filter(|line| !is_internal(line))
        .map(str::to_owned)
        .collect();
    let missing: Vec<_> = theirs.difference(&ours).collect();
    let extra: Vec<_> = ours.difference(&theirs).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "missing {missing:#?}, extra {extra:#?}"
    );
    assert!(ours.len() > 400, "only {} lines", ours.len());
}

fn is_internal(line: &str) -> bool {
    let name = line.split_whitespace().nth(1).unwrap_or_default();
    let message = match line.starts_with("field") {
        true => name.rsplit_once('.').map_or(name, |(message, _)| message),
        false => name,
    };
    INTERNAL.contains(&message)
}

fn surface() -> BTreeSet<String> {
    let files = FileDescriptorSet::decode(pontoon_api::DESCRIPTORS).unwrap();
    let mut lines = BTreeSet::new();
    for file in files.file.iter().filter(|file| file.package() != OUR_OWN) {
        let package = file.package();
        for service in &file.service {
            add_service(&mut lines, package, service);
        }
        for message in &file.message_type {
            add_message(&mut lines, package, message);
        }
        for values in &file.enum_type {
            add_enum(&mut lines, package, values);
        }
    }
    lines
}

fn add_service(lines: &mut BTreeSet<String>, package: &str, service: &ServiceDescriptorProto) {
    for method in &service.method {
        let input = streamed(method.client_streaming(), method.input_type());
        let output = streamed(method.server_streaming(), method.output_type());
        let (service, method) = (service.name(), method.name());
        lines.insert(format!(
            "rpc {package}.{service}/{method}: {input} -> {output}"
        ));
    }
}

fn streamed(stream: bool, message: &str) -> String {
    let message = message.trim_start_matches('.');
    match stream {
        true => format!("stream {message}"),
        false => message.to_owned(),
    }
}

fn add_message(lines: &mut BTreeSet<String>, scope: &str, message: &DescriptorProto) {
    let name = format!("{scope}.{}", message.name());
    lines.insert(format!("message {name}"));
    for field in &message.field {
        lines.insert(field_line(&name, message, field));
    }
    for inner in &message.nested_type {
        add_message(lines, &name, inner);
    }
    for values in &message.enum_type {
        add_enum(lines, &name, values);
    }
}

fn field_line(name: &str, message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let union = field
        .oneof_index
        .map(|index| format!("oneof {} ", message.oneof_decl[index as usize].name()));
    let repeated = match field.label() {
        Label::Repeated => "repeated ",
        _ => "",
    };
    let kind = match field.r#type() {
        Type::Message | Type::Enum => field.type_name().trim_start_matches('.'),
        Type::Bool => "bool",
        Type::Bytes => "bytes",
        Type::Int64 => "int64",
        Type::String => "string",
        Type::Uint32 => "uint32",
        Type::Uint64 => "uint64",
        other => panic!(
            "{} has a type that etcd doesn't use: {other:?}",
            field.name()
        ),
    };
    format!(
        "field {name}.{} = {} {}{repeated}{kind}",
        field.name(),
        field.number(),
        union.unwrap_or_default(),
    )
}

fn add_enum(lines: &mut BTreeSet<String>, scope: &str, values: &EnumDescriptorProto) {
    for value in &values.value {
        let (name, number) = (value.name(), value.number());
        lines.insert(format!("enum {scope}.{}.{name} = {number}", values.name()));
    }
}
