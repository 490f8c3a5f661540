#include "checkpoint/checkpoint_stamp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTwoShards[] = R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})";

CheckpointStamp Take(const std::string& path, LoadFormat format = LoadFormat::kAuto) {
  const absl::StatusOr<CheckpointStamp> stamp = TakeCheckpointStamp(path, format);
  EXPECT_TRUE(stamp.ok()) << stamp.status();
  return stamp.value_or(CheckpointStamp());
}

std::vector<std::string> Names(const CheckpointStamp& stamp) {
  std::vector<std::string> names;
  for (const FileStamp& file : stamp.files) names.push_back(file.name);
  return names;
}

void Touch(const std::string& path) {
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
}

std::string Sharded() {
  const std::string directory = MakeTempDir();
  WriteFile(directory + "/config.json", "{}");
  WriteFile(directory + "/model.safetensors.index.json", kTwoShards);
  WriteFile(directory + "/1.safetensors", "first");
  WriteFile(directory + "/2.safetensors", "second");
  WriteFile(directory + "/tokenizer.json", "{}");
  return directory;
}

std::string Single() {
  const std::string directory = MakeTempDir();
  WriteFile(directory + "/config.json", "{}");
  WriteFile(directory + "/model.safetensors", "weights");
  return directory;
}

// The change of the files since `before`.
std::string Change(const CheckpointStamp& before, const std::string& path) {
  const absl::Status status = CheckSameFiles(before, Take(path));
  EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
  return std::string(status.message());
}

TEST(CheckpointStampTest, TheFilesThatDecideTheWeights) {
  EXPECT_THAT(Names(Take(Sharded())),
              ElementsAre("1.safetensors", "2.safetensors", "config.json", "model.safetensors.index.json"));
  EXPECT_THAT(Names(Take(Single())), ElementsAre("config.json", "model.safetensors"));
  EXPECT_THAT(Names(Take(Single(), LoadFormat::kDummy)), ElementsAre("config.json"));
  const std::string directory = MakeTempDir();
  WriteFile(directory + "/m.gguf", "gguf");
  EXPECT_THAT(Names(Take(directory + "/m.gguf")), ElementsAre("m.gguf"));
}

TEST(CheckpointStampTest, EveryPartOfAGguf) {
  const std::string stem = MakeTempDir() + "/m";
  for (const char* part : {"-00001-of-00003.gguf", "-00002-of-00003.gguf", "-00003-of-00003.gguf"})
    WriteFile(stem + part, "part");
  const std::string path = stem + "-00001-of-00003.gguf";
  const CheckpointStamp before = Take(path);
  EXPECT_THAT(Names(before),
              ElementsAre("m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"));
  fs::remove(stem + "-00002-of-00003.gguf");
  EXPECT_EQ(Change(before, path), "m-00002-of-00003.gguf is gone");
  // A file whose name is no first part is alone.
  WriteFile(stem + "-00002-of-00099999.gguf", "one");
  EXPECT_EQ(Take(stem + "-00002-of-00099999.gguf").files.size(), 1);
}

TEST(CheckpointStampTest, UnchangedFilesAreTheSame) {
  const std::string directory = Sharded();
  const CheckpointStamp before = Take(directory);
  EXPECT_EQ(Take(directory), before);
  EXPECT_EQ(CheckSameFiles(before, Take(directory)), absl::OkStatus());
  Touch(directory + "/tokenizer.json");
  EXPECT_EQ(Change(before, directory), "") << "no weights come from it";
}

TEST(CheckpointStampTest, EveryChangeIsNamed) {
  const std::string directory = Single(), weights = directory + "/model.safetensors";
  CheckpointStamp before = Take(directory);
  Touch(weights);
  EXPECT_EQ(Change(before, directory), "model.safetensors was modified");

  before = Take(directory);
  const fs::file_time_type time = fs::last_write_time(weights);
  WriteFile(weights, "other weights");
  fs::last_write_time(weights, time);
  EXPECT_EQ(Change(before, directory), "model.safetensors has 13 bytes, not 7");

  before = Take(directory);
  fs::copy_file(weights, directory + "/new");
  fs::last_write_time(directory + "/new", time);
  fs::rename(directory + "/new", weights);
  EXPECT_EQ(Change(before, directory), "model.safetensors is another file") << "of the same size and time";

  before = Take(directory);
  Touch(directory + "/config.json");
  EXPECT_EQ(Change(before, directory), "config.json was modified");
}

TEST(CheckpointStampTest, FilesThatComeAndGo) {
  const std::string directory = Sharded();
  const CheckpointStamp before = Take(directory);
  WriteFile(directory + "/model.safetensors", "all");
  EXPECT_EQ(Change(before, directory), "1.safetensors is gone") << "it is read no more";
  fs::remove(directory + "/model.safetensors");
  EXPECT_EQ(Change(before, directory), "");
  CheckpointStamp fewer = before;
  fewer.files.pop_back();
  EXPECT_EQ(CheckSameFiles(fewer, before).message(), "model.safetensors.index.json is new");
}

TEST(CheckpointStampTest, ErrorsNameTheFileWithoutItsDirectory) {
  const std::string directory = Sharded();
  fs::remove(directory + "/2.safetensors");
  const absl::Status gone = TakeCheckpointStamp(directory).status();
  EXPECT_TRUE(absl::IsNotFound(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()), AllOf(HasSubstr("2.safetensors"), Not(HasSubstr(directory))));
  WriteFile(directory + "/model.safetensors.index.json", R"({"weight_map": {"a": "../a"}})");
  EXPECT_TRUE(absl::IsInvalidArgument(TakeCheckpointStamp(directory).status()));
  WriteFile(directory + "/model.safetensors.index.json", "[");
  EXPECT_TRUE(absl::IsInvalidArgument(TakeCheckpointStamp(directory).status()));
  EXPECT_TRUE(absl::IsNotFound(TakeCheckpointStamp(directory + "/none").status()));
}

}  // namespace
}  // namespace somnus
