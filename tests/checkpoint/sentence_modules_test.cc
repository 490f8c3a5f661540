#include "checkpoint/sentence_modules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using ::testing::HasSubstr;
using Pooling = SentenceModules::Pooling;

constexpr char kAll[] = R"([
  {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
  {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
  {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])";
constexpr char kNotNormalized[] =
    R"([{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}])";
constexpr char kLast[] = R"({"word_embedding_dimension": 64, "pooling_mode_cls_token": false,
                             "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true, "include_prompt": true})";

class SentenceModulesTest : public ::testing::Test {
 protected:
  auto Read(const std::string& modules, const std::string& pooling) {
    std::filesystem::create_directory(dir_ + "/1_Pooling");
    std::ofstream(dir_ + "/modules.json") << modules;
    std::ofstream(dir_ + "/1_Pooling/config.json") << pooling;
    return ReadSentenceModules(dir_);
  }
  std::string Missing(const std::string& modules, const std::string& pooling) {
    const auto read = Read(modules, pooling);
    return read.ok() && read->has_value() ? (*read)->missing : read.status().ToString();
  }

  const std::string dir_ = MakeTempDir();
};

TEST_F(SentenceModulesTest, ADirectoryWithoutTheFileSaysNothing) {
  const auto read = ReadSentenceModules(dir_);
  ASSERT_TRUE(read.ok());
  EXPECT_FALSE(read->has_value());
}

TEST_F(SentenceModulesTest, PoolingAndNormalization) {
  const auto all = Read(kAll, kLast);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ((*all)->pooling, Pooling::kLast);
  EXPECT_TRUE((*all)->normalizes);
  EXPECT_EQ((*all)->missing, "");
  const auto mean = Read(kNotNormalized, R"({"pooling_mode_mean_tokens": true})");
  ASSERT_TRUE(mean.ok()) << mean.status();
  EXPECT_EQ((*mean)->pooling, Pooling::kMean);
  EXPECT_FALSE((*mean)->normalizes);
  EXPECT_EQ((*Read(kAll, R"({"pooling_mode_cls_token": true})"))->pooling, Pooling::kCls);
  EXPECT_EQ((*Read(kAll, R"({"pooling_mode": "mean"})"))->pooling, Pooling::kMean);
}

TEST_F(SentenceModulesTest, AByteOrderMarkIsNoPartOfTheFiles) {
  const std::string mark = "\xEF\xBB\xBF";
  const auto all = Read(mark + kAll, mark + kLast);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_TRUE((*all)->normalizes);
  EXPECT_FALSE(Read(kAll + mark, kLast).ok()) << "a mark elsewhere is a fault";
}

TEST_F(SentenceModulesTest, WhatIsMissingHasAName) {
  EXPECT_EQ(Missing(R"([{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}])", kLast),
            "the module Dense");
  EXPECT_EQ(Missing(kAll, R"({"pooling_mode_max_tokens": true})"), "the pooling max");
  EXPECT_EQ(Missing(kAll, R"({"pooling_mode": "attention"})"), "the pooling attention");
  EXPECT_EQ(Missing(kAll, R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})"),
            "the poolings cls and mean together");
}

TEST_F(SentenceModulesTest, DamagedFilesAreErrorsThatNameTheFile) {
  const std::pair<std::string, std::string> rows[] = {
      {"{}", kLast},
      {"[1]", kLast},
      {"[", kLast},
      {kAll, "[]"},
      {kAll, "{"},
      {kAll, "{}"},
      {R"([{"path": "../other", "type": "Pooling"}])", kLast},
      {R"([{"path": "1_Nothing", "type": "Pooling"}])", kLast},
      {R"([{"path": 1, "type": "Pooling"}])", kLast}};
  for (const auto& [modules, pooling] : rows) {
    const absl::Status status = Read(modules, pooling).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << modules << pooling;
    EXPECT_THAT(std::string(status.message()), HasSubstr(".json")) << modules << pooling;
    EXPECT_EQ(status.message().find(dir_), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace somnus
