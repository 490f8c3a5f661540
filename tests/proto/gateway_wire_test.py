"""The table of the gateways' protocol (tests/data/gateway_wire.txt) says what the package smg-grpc-proto says.

gateway_wire_test.cc compares the table with our own definitions. As a script the file prints the table of the installed package,
for a new version of the package.
"""
import os
import unittest

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "gateway_wire.txt")
TYPES = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 11: "message", 12: "bytes",
         13: "uint32", 14: "enum"}


def line_of_field(field):
    label = "repeated" if field.is_repeated else "single"
    kind = TYPES[field.type]
    if field.message_type is not None:
        kind = field.message_type.full_name
    if field.enum_type is not None:
        kind = field.enum_type.full_name
    oneof = f" {field.containing_oneof.name}" if field.containing_oneof is not None else ""
    return f"{field.full_name} {field.number} {label} {kind}{oneof}"


def lines_of_message(message):
    lines = [line_of_field(field) for field in message.fields]
    for nested in message.nested_types:
        lines += lines_of_message(nested)
    return lines


def table(files):
    lines = []
    for file in files:
        for message in file.message_types_by_name.values():
            lines += lines_of_message(message)
        for enum in file.enum_types_by_name.values():
            lines += [f"{enum.full_name}.{value.name} {value.number}" for value in enum.values]
        for service in file.services_by_name.values():
            for method in service.methods:
                stream = " stream" if method.server_streaming else ""
                lines.append(f"{method.full_name} {method.input_type.full_name}{stream} {method.output_type.full_name}")
    return sorted(lines)


def package_table():
    try:
        from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2
    except ImportError as error:
        raise unittest.SkipTest("smg-grpc-proto is not installed: tests/clients/run.sh installs the package") from error
    return table([common_pb2.DESCRIPTOR, vllm_engine_pb2.DESCRIPTOR])


class Wire(unittest.TestCase):
    def test_the_table_is_the_packages(self):
        with open(GOLDEN, encoding="utf-8") as file:
            golden = file.read().splitlines()
        self.assertEqual(package_table(), golden)


if __name__ == "__main__":
    print("\n".join(package_table()))
