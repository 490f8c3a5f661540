// The gateways' protocol has the wire of the package smg-grpc-proto: every message, field, number, type and
// call is in the table that was made from the package (gateway_wire_test.py).

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/smg_common.pb.h"
#include "proto/vllm_engine.pb.h"

namespace somnus {
namespace {

namespace pb = ::google::protobuf;

std::string KindOf(const pb::FieldDescriptor& field) {
  if (field.message_type() != nullptr) return field.message_type()->full_name();
  if (field.enum_type() != nullptr) return field.enum_type()->full_name();
  return field.type_name();
}

std::string LineOf(const pb::FieldDescriptor& field) {
  // C++ does not allow this one name, which has no effect on the wire.
  const std::string name = field.full_name() == "smg.grpc.common.RemoteTensorHandle.descriptor_bytes"
                               ? "smg.grpc.common.RemoteTensorHandle.descriptor"
                               : field.full_name();
  const pb::OneofDescriptor* const oneof = field.containing_oneof();
  return absl::StrCat(name, " ", field.number(), field.is_repeated() ? " repeated " : " single ",
                      KindOf(field), oneof == nullptr ? "" : absl::StrCat(" ", oneof->name()));
}

void AddMessage(const pb::Descriptor& message, std::vector<std::string>* lines) {
  for (int i = 0; i < message.field_count(); ++i) lines->push_back(LineOf(*message.field(i)));
  for (int i = 0; i < message.nested_type_count(); ++i) AddMessage(*message.nested_type(i), lines);
}

void AddFile(const pb::FileDescriptor& file, std::vector<std::string>* lines) {
  for (int i = 0; i < file.message_type_count(); ++i) AddMessage(*file.message_type(i), lines);
  for (int i = 0; i < file.enum_type_count(); ++i) {
    const pb::EnumDescriptor& type = *file.enum_type(i);
    for (int j = 0; j < type.value_count(); ++j) {
      lines->push_back(
          absl::StrCat(type.full_name(), ".", type.value(j)->name(), " ", type.value(j)->number()));
    }
  }
  for (int i = 0; i < file.service_count(); ++i) {
    for (int j = 0; j < file.service(i)->method_count(); ++j) {
      const pb::MethodDescriptor& method = *file.service(i)->method(j);
      lines->push_back(absl::StrCat(method.full_name(), " ", method.input_type()->full_name(),
                                    method.server_streaming() ? " stream " : " ",
                                    method.output_type()->full_name()));
    }
  }
}

TEST(GatewayWireTest, OurDefinitionsAreThePackages) {
  std::vector<std::string> ours, golden;
  AddFile(*smg::grpc::common::KvEventBatch::descriptor()->file(), &ours);
  AddFile(*vllm::grpc::engine::GenerateRequest::descriptor()->file(), &ours);
  std::sort(ours.begin(), ours.end());
  std::ifstream file("tests/data/gateway_wire.txt");
  for (std::string line; std::getline(file, line);) golden.push_back(line);
  ASSERT_FALSE(golden.empty());
  EXPECT_EQ(ours, golden);
}

}  // namespace
}  // namespace somnus
