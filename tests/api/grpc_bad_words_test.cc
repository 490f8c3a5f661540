// Bad words over gRPC, above a fake engine.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

// As over HTTP; the tokens of the fixture are bytes.
TEST_F(GrpcServicesTest, BadWordsAreNeverCompletedWhicheverTokensSpellThem) {
  const auto sampling_with = [this](const std::vector<std::vector<int32_t>>& words) {
    v1::GenerateRequest request = Request("abc", 5);
    for (const auto& word : words)
      request.mutable_sampling()->add_bad_words()->mutable_ids()->Add(word.begin(), word.end());
    EXPECT_EQ(Text(request), "abcab");
    return engine_->last_sampling();
  };
  const SamplingParams sampling = sampling_with({{' ', 'a', 'b'}, {'c'}});
  EXPECT_EQ(sampling.bad_words, (std::vector<std::vector<int32_t>>{{' ', 'a', 'b'}, {'c'}}));
  ASSERT_EQ(sampling.bad_texts.size(), 2u);
  EXPECT_EQ(sampling.bad_texts[0].num_bytes, 2) << "white space around a word does not count";
  EXPECT_EQ(sampling.bad_texts[0].pieces, (std::vector<BadText::Piece>{{'a', 0, 1}, {'b', 1, 2}}));
  EXPECT_EQ(sampling.bad_texts[1].pieces, (std::vector<BadText::Piece>{{'c', 0, 1}}));
  // Control tokens, white space and parts of a character spell no word: their ids alone are kept away.
  for (const std::vector<int32_t>& ids :
       std::vector<std::vector<int32_t>>{{ByteTokenizer::kEos}, {'a', ByteTokenizer::kEos}, {' '}, {0xC3}}) {
    const SamplingParams exact = sampling_with({ids});
    EXPECT_EQ(exact.bad_words, std::vector<std::vector<int32_t>>{ids});
    EXPECT_TRUE(exact.bad_texts.empty());
  }
}

}  // namespace
}  // namespace somnus
