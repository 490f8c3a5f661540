// The options that make two loads the same.

#include "proto/options_digest.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

v1::LoadModelRequest Request() {
  v1::LoadModelRequest request;
  request.set_model_path("/models/a");
  request.set_max_num_seqs(64);
  request.mutable_parallel()->set_rank(1);
  request.mutable_parallel()->set_world_size(2);
  return request;
}

TEST(OptionsDigest, IgnoresWhatDiffersFromCallToCall) {
  v1::LoadModelRequest other = Request();
  other.set_group_epoch(7);
  other.set_operation_id(8);
  other.set_weights_version(9);
  v1::ParallelConfig* parallel = other.mutable_parallel();
  parallel->set_group_name("g");
  parallel->set_nccl_unique_id("id");
  parallel->add_nccl_link_ids("id of a link");
  parallel->add_rank_addresses("host:1");
  parallel->set_group_secret("secret");
  EXPECT_EQ(OptionsDigest(other), OptionsDigest(Request()));
}

TEST(OptionsDigest, TellsOptionsApart) {
  const std::string digest = OptionsDigest(Request());
  EXPECT_EQ(digest.size(), 16u);
  v1::LoadModelRequest other = Request();
  other.set_max_num_seqs(65);
  EXPECT_NE(OptionsDigest(other), digest);
  other = Request();
  other.set_quantization(v1::WEIGHT_QUANTIZATION_INT8);
  EXPECT_NE(OptionsDigest(other), digest);
  other = Request();
  other.mutable_parallel()->set_rank(0);
  EXPECT_NE(OptionsDigest(other), digest);
}

}  // namespace
}  // namespace somnus
