#include "checkpoint/safetensors_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class Shards : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& bytes) { WriteFile(directory_ + "/" + name, bytes); }
  void Index(const std::string& weight_map) {
    Write("model.safetensors.index.json",
          "{\"metadata\":{\"total_size\":1},\"weight_map\":" + weight_map + "}");
  }
  std::string Read() {
    tensors_ = TensorTable();
    return ReadSafetensorsDirectory(directory_, &tensors_).ToString();
  }

  std::string directory_ = MakeTempDir();
  TensorTable tensors_;
};

TEST_F(Shards, AreReadByTheIndex) {
  Write("one.safetensors", SafetensorsOf({{"a", {2}}, {"unlisted", {1}}}));
  Write("two.safetensors", SafetensorsOf({{"b", {3}}, {"a", {5}}}));
  Write("extra.safetensors", "not looked at");
  Index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  EXPECT_EQ(Read(), "OK");
  EXPECT_EQ(tensors_.All().size(), 3u);
  EXPECT_EQ(tensors_.Find("b")->file, "two.safetensors");
  // The tensor comes from the shard that the index names, not from the copy.
  EXPECT_EQ(tensors_.Find("a")->shape, (std::vector<int64_t>{2}));
  EXPECT_EQ(tensors_.Find("unlisted")->file, "one.safetensors");
  Write("two.safetensors", SafetensorsOf({{"b", {3}}, {"unlisted", {1}}}));
  EXPECT_THAT(Read(), HasSubstr("two.safetensors: tensor unlisted is there more than once"));
}

TEST_F(Shards, MissingOrIncompleteOnesAreNamed) {
  Write("one.safetensors", SafetensorsOf({{"a", {2}}}));
  Index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  EXPECT_THAT(Read(), HasSubstr("shard two.safetensors, which holds tensor b, is missing"));
  Write("two.safetensors", SafetensorsOf({{"c", {2}}}));
  EXPECT_THAT(Read(), HasSubstr("two.safetensors: tensor b, which the index says is here, is missing"));
  Write("two.safetensors", SafetensorsOf({{"b", {2}}}).substr(0, 40));
  EXPECT_THAT(Read(), HasSubstr("INVALID_ARGUMENT: two.safetensors: header of"));
}

TEST_F(Shards, TheIndexCannotReachOutOfTheDirectory) {
  for (const char* shard :
       {"../m.safetensors", "/etc/passwd", "a/../b", "a//b", "a/", "./b", "..", ".", "", R"(x\u0000y)"}) {
    Index(absl::StrCat("{\"a\":\"", shard, "\"}"));
    EXPECT_THAT(Read(), HasSubstr("not the name of a file in the directory")) << shard;
  }
}

TEST_F(Shards, DamagedIndexes) {
  for (const char* weight_map : {"[]", "{\"a\":1}", "{\"a\":\"x\"", R"({"a":"x","a":"x"})", "null"}) {
    Index(weight_map);
    EXPECT_THAT(Read(), HasSubstr("INVALID_ARGUMENT: model.safetensors.index.json: ")) << weight_map;
  }
  Write("model.safetensors.index.json", "{}");
  EXPECT_THAT(Read(), HasSubstr("weight_map is missing"));
}

TEST_F(Shards, MayBeInFoldersOfTheDirectory) {
  std::filesystem::create_directory(directory_ + "/parts");
  Write("parts/one.safetensors", SafetensorsOf({{"a", {2}}}));
  Write("one.safetensors", SafetensorsOf({{"b", {2}}}));
  Index(R"({"a":"parts/one.safetensors","b":"one.safetensors"})");
  EXPECT_EQ(Read(), "OK");
  EXPECT_EQ(tensors_.All().size(), 2u);
  const auto stamp = SafetensorsFiles(directory_);
  ASSERT_TRUE(stamp.ok()) << stamp.status();
  EXPECT_THAT(*stamp, UnorderedElementsAre("model.safetensors.index.json", "parts/one.safetensors",
                                           "one.safetensors"));
}

// Editors and scripts on Windows put a byte order mark before JSON.
TEST_F(Shards, AnIndexMayBeginWithAByteOrderMark) {
  Write("one.safetensors", SafetensorsOf({{"a", {2}}}));
  Write("model.safetensors.index.json", "\xEF\xBB\xBF{\"weight_map\":{\"a\":\"one.safetensors\"}}");
  EXPECT_EQ(Read(), "OK");
}

TEST_F(Shards, WithoutAnIndexAreReadIfTheyAreAllThere) {
  Write("model-00001-of-00002.safetensors", SafetensorsOf({{"a", {2}}}));
  EXPECT_THAT(Read(), HasSubstr("INVALID_ARGUMENT: model-*-of-00002.safetensors: part 2 of 2 of the model is "
                                "missing, and so is model.safetensors.index.json"));
  Write("model-00002-of-00002.safetensors", SafetensorsOf({{"b", {3}}}));
  EXPECT_EQ(Read(), "OK");
  EXPECT_EQ(tensors_.All().size(), 2u);
  EXPECT_THAT(*SafetensorsFiles(directory_),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  // Files in Mistral's own format and adapters are no part of the model.
  Write("consolidated.safetensors", SafetensorsOf({{"layers.0.attention.wq.weight", {2}}, {"a", {2}}}));
  Write("adapter_model.safetensors", SafetensorsOf({{"a", {2}}}));
  EXPECT_EQ(Read(), "OK");
  EXPECT_EQ(tensors_.All().size(), 2u);
  Write("model-00002-of-00002.safetensors", SafetensorsOf({{"b", {3}}, {"a", {2}}}));
  EXPECT_THAT(Read(), HasSubstr("model-00002-of-00002.safetensors: tensor a is there more than once"));
}

TEST_F(Shards, OneFileOfAnotherName) {
  Write("weights.SAFETENSORS", SafetensorsOf({{"a", {2}}}));
  EXPECT_EQ(Read(), "OK");
  EXPECT_EQ(tensors_.Find("a")->file, "weights.SAFETENSORS");
  EXPECT_THAT(*SafetensorsFiles(directory_), ElementsAre("weights.SAFETENSORS"));
  Write("other.safetensors", SafetensorsOf({{"a", {2}}}));
  EXPECT_THAT(Read(), HasSubstr("tensor a is there more than once"));
}

// A hub's cache: names in a snapshot are links to files that are named by their contents.
TEST_F(Shards, MayBeLinks) {
  std::filesystem::create_directories(directory_ + "/blobs");
  Write("blobs/0a1b2c", SafetensorsOf({{"a", {2}}}));
  std::filesystem::create_directories(directory_ + "/snapshots/f00");
  const std::string snapshot = directory_ + "/snapshots/f00";
  std::filesystem::create_symlink("../../blobs/0a1b2c", snapshot + "/model-00001-of-00001.safetensors");
  EXPECT_EQ(ReadSafetensorsDirectory(snapshot, &tensors_).ToString(), "OK");
  EXPECT_NE(tensors_.Find("a"), nullptr);
}

TEST_F(Shards, GitLfsPointersAreCalledThat) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid "
      "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daa"
      "a5e2ca24d17e2393\nsize 12345\n";
  for (const char* name :
       {"model-00001-of-00001.safetensors", "model.safetensors.index.json", "model.safetensors"}) {
    Write(name, pointer);
    EXPECT_EQ(Read(), absl::StrCat("INVALID_ARGUMENT: ", name,
                                   ": a Git LFS pointer in place of the file: "
                                   "\"git lfs pull\" in the folder fetches it"));
  }
}

TEST_F(Shards, NothingToRead) {
  EXPECT_THAT(Read(), HasSubstr("NOT_FOUND: no .safetensors file is in the directory"));
  std::filesystem::create_directory(directory_ + "/model.safetensors");
  EXPECT_EQ(Read(), "INVALID_ARGUMENT: model.safetensors: not a regular file");
}

}  // namespace
}  // namespace somnus
