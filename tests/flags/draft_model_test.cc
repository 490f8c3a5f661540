// Which models may guess for another one.

#include "coordinator/draft_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_replace.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

using testing::HasSubstr;

constexpr char kModel[] = "tests/data/tiny/qwen3";

class DraftModelTest : public testing::Test {
 protected:
  void SetUp() override {
    auto model = Checkpoint::Open(kModel);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  absl::Status Check(const std::string& draft, int32_t max_model_len = 128) {
    return CheckDraftModel(draft, LoadFormat::kDummy, *model_, max_model_len).status();
  }
  // A copy of a tiny checkpoint in which one file has other text.
  std::string Changed(const std::string& file, const std::string& from, const std::string& to) {
    const std::filesystem::path folder = std::filesystem::path(dir_.path()) / file;
    std::filesystem::create_directory(folder);
    for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(std::filesystem::path("tests/data/tiny/qwen2") / name, folder / name);
    std::filesystem::permissions(folder / file, std::filesystem::perms::owner_all);
    std::stringstream text;
    text << std::ifstream(folder / file).rdbuf();
    EXPECT_THAT(text.str(), HasSubstr(from));
    std::ofstream(folder / file) << absl::StrReplaceAll(text.str(), {{from, to}, {to, from}});
    return folder;
  }

  TempDir dir_;
  std::unique_ptr<Checkpoint> model_;
};

TEST_F(DraftModelTest, OneWithTheSameTokensMay) {
  for (const char* draft : {"qwen3", "qwen2", "llama-rope3", "llama-uneven", "opt"})
    EXPECT_EQ(Check(std::string("tests/data/tiny/") + draft), absl::OkStatus()) << draft;
  const auto config = CheckDraftModel("tests/data/tiny/opt", LoadFormat::kAuto, *model_, 256);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_layers, 2);
}

TEST_F(DraftModelTest, AnErrorNamesTheFlagAndWhatDiffers) {
  const absl::Status missing = Check("tests/data/tiny/nothing");
  EXPECT_FALSE(missing.ok());
  EXPECT_THAT(std::string(missing.message()), HasSubstr("--draft-model: tests/data/tiny/nothing"));
  const auto message = [this](const std::string& draft, int32_t max_model_len = 128) {
    const absl::Status status = Check(draft, max_model_len);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--draft-model: " + draft + ": "));
    return std::string(status.message());
  };
  EXPECT_THAT(message(Changed("config.json", "\"vocab_size\": 512", "\"vocab_size\": 500")),
              HasSubstr("it has a vocabulary of 500 tokens, the model one of 512"));
  EXPECT_THAT(message(Changed("tokenizer.json", "\": 300", "\": 301")),
              HasSubstr("its tokenizer is not the model's: token 300 is '"));
  EXPECT_THAT(message("tests/data/tiny/opt", 257),
              HasSubstr("it has 256 positions, and the model is served with 257"));
}

}  // namespace
}  // namespace somnus
