#include "proto/options_digest.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <xxhash.h>

#include "absl/strings/str_cat.h"

namespace somnus {

std::string OptionsDigest(const v1::LoadModelRequest& request) {
  v1::LoadModelRequest options = request;
  options.clear_group_epoch();
  options.clear_operation_id();
  options.clear_weights_version();
  options.clear_asleep_tags();
  options.clear_sleep_level();
  options.mutable_parallel()->clear_group_name();
  options.mutable_parallel()->clear_nccl_unique_id();
  options.mutable_parallel()->clear_rank_hosts();
  options.mutable_parallel()->clear_rank_cpus();
  options.mutable_parallel()->clear_rank_addresses();
  options.mutable_parallel()->clear_link_addresses();
  options.mutable_parallel()->clear_nccl_link_ids();
  options.mutable_parallel()->clear_group_secret();
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream sink(&bytes);
    google::protobuf::io::CodedOutputStream out(&sink);
    out.SetSerializationDeterministic(true);
    options.SerializeToCodedStream(&out);
  }
  return absl::StrCat(absl::Hex(XXH3_64bits(bytes.data(), bytes.size()), absl::kZeroPad16));
}

}  // namespace somnus
