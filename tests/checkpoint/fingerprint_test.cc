#include "checkpoint/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Tensors = std::vector<std::pair<std::string, std::vector<int64_t>>>;

constexpr char kConfig[] = R"({"architectures": ["LlamaForCausalLM"]})";

std::string Of(const std::string& path, LoadFormat format = LoadFormat::kAuto) {
  const absl::StatusOr<std::string> fingerprint = CheckpointFingerprint(path, format);
  EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
  return fingerprint.ok() ? *fingerprint : "";
}

std::string ErrorOf(const std::string& path) { return CheckpointFingerprint(path).status().ToString(); }

std::string Directory(const std::string& weights, const std::string& config = kConfig) {
  const std::string directory = MakeTempDir();
  WriteFile(directory + "/config.json", config);
  WriteFile(directory + "/model.safetensors", weights);
  return directory;
}

std::string Sharded(const std::string& first, const std::string& second, const std::string& shard_of_b) {
  const std::string directory = MakeTempDir();
  WriteFile(directory + "/config.json", kConfig);
  WriteFile(directory + "/1.safetensors", first);
  WriteFile(directory + "/2.safetensors", second);
  WriteFile(
      directory + "/model.safetensors.index.json",
      absl::StrCat(R"({"weight_map":{"a":"1.safetensors","b":")", shard_of_b, R"(","c":"2.safetensors"}})"));
  return directory;
}

std::string WriteGguf(const std::string& bytes, const std::string& name = "m.gguf") {
  const std::string path = MakeTempDir() + "/" + name;
  WriteFile(path, bytes);
  return path;
}

// `bytes` with the byte at `at`, counted from the end when negative, changed.
std::string Changed(std::string bytes, int64_t at) {
  bytes[at < 0 ? bytes.size() + at : at] ^= 1;
  return bytes;
}

TEST(FingerprintTest, EqualFilesAtOtherPathsAndTimesAreEqual) {
  const std::string weights = SafetensorsOf({{"a", {2, 3}}, {"b", {5}}});
  const std::string one = Directory(weights), other = Directory(weights);
  fs::last_write_time(other + "/model.safetensors", fs::file_time_type::clock::now() - std::chrono::hours(9));
  WriteFile(other + "/tokenizer.json", "{}");  // workers never read it
  const std::string link = MakeTempDir() + "/link";
  fs::create_symlink(one, link);
  EXPECT_EQ(Of(one).size(), 64u);
  EXPECT_EQ(Of(one), Of(other));
  EXPECT_EQ(Of(one), Of(link + "/"));
  const std::string gguf = TinyGguf().Write();
  EXPECT_EQ(Of(WriteGguf(gguf)), Of(WriteGguf(gguf, "another-name.gguf")));
}

TEST(FingerprintTest, EveryPropertyOfTheTableCounts) {
  const std::string base = Of(Directory(SafetensorsOf({{"a", {2, 3}}, {"b", {5}}})));
  for (const Tensors& tensors : std::vector<Tensors>{{{"a", {3, 2}}, {"b", {5}}},
                                                     {{"a", {6}}, {"b", {5}}},
                                                     {{"renamed", {2, 3}}, {"b", {5}}},
                                                     {{"a", {2, 3}}, {"b", {6}}},
                                                     {{"a", {2, 3}}, {"b", {5}}, {"c", {0}}},
                                                     {{"b", {5}}, {"a", {2, 3}}}}) {
    EXPECT_NE(Of(Directory(SafetensorsOf(tensors))), base) << tensors[0].first << " " << tensors.size();
  }
  // Tensors of the same size, place and bytes: the type alone differs.
  const auto typed = [](const char* type) {
    return SafetensorsFile(
        absl::StrCat(R"({"a":{"dtype":")", type, R"(","shape":[8],"data_offsets":[0,16]}})"),
        std::string(16, 'x'));
  };
  EXPECT_NE(Of(Directory(typed("F16"))), Of(Directory(typed("BF16"))));
}

TEST(FingerprintTest, TheConfigurationCounts) {
  const std::string weights = SafetensorsOf({{"a", {2, 3}}});
  EXPECT_NE(Of(Directory(weights)), Of(Directory(weights, R"({"architectures": ["OPTForCausalLM"]})")));
}

TEST(FingerprintTest, SampledBytesCount) {
  const std::string small = SafetensorsOf({{"a", {2, 3}}, {"b", {5}}});
  for (const int64_t from_end : {-1, -20, -21, -44}) {
    EXPECT_NE(Of(Directory(Changed(small, from_end))), Of(Directory(small))) << from_end;
  }
  // 64 KiB: the first, the middle and the last 4 KiB are samples, the bytes in between are not read.
  const std::string large = SafetensorsOf({{"a", {16, 1024}}});
  const std::string base = Of(Directory(large));
  const int64_t begin = static_cast<int64_t>(large.size()) - 65536;
  for (const int64_t at : {0, 4095, 32768, 61440, 65535}) {
    EXPECT_NE(Of(Directory(Changed(large, begin + at))), base) << at;
  }
  EXPECT_EQ(Of(Directory(Changed(large, begin + 4096))), base);
}

TEST(FingerprintTest, OfManyTensorsSomeAreSampled) {
  Tensors many;
  for (int i = 0; i < 1024; ++i) many.push_back({absl::StrCat("t", i), {1}});
  const std::string weights = SafetensorsOf(many);
  const std::string base = Of(Directory(weights));
  int noticed = 0;
  for (int64_t tensor = 1; tensor <= 8; ++tensor) {
    noticed += Of(Directory(Changed(weights, -4 * tensor))) != base ? 1 : 0;
  }
  EXPECT_EQ(noticed, 4);
}

TEST(FingerprintTest, ShardsAndTheirIndexCount) {
  const std::string first = SafetensorsOf({{"a", {2}}, {"b", {3}}});
  const std::string second = SafetensorsOf({{"b", {3}}, {"c", {4}}});
  const std::string base = Of(Sharded(first, second, "1.safetensors"));
  EXPECT_EQ(Of(Sharded(first, second, "1.safetensors")), base);
  EXPECT_NE(Of(Sharded(first, second, "2.safetensors")), base);
  EXPECT_NE(Of(Sharded(first, Changed(second, -1), "1.safetensors")), base);
  EXPECT_NE(Of(Directory(SafetensorsOf({{"a", {2}}, {"b", {3}}, {"c", {4}}}))), base);
}

TEST(FingerprintTest, GgufMetadataTensorsAndPartsCount) {
  const std::string base = Of(WriteGguf(TinyGguf().Write()));
  GgufWriter more = TinyGguf();
  more.Uint32("llama.rope.dimension_count", 4);
  EXPECT_NE(Of(WriteGguf(more.Write())), base);
  EXPECT_NE(Of(WriteGguf(Changed(TinyGguf().Write(), -1))), base);
  EXPECT_NE(Of(WriteGguf(TinyGguf("qwen2").Write())), base);

  const auto parts = [](char fill) {
    const std::string directory = MakeTempDir();
    GgufWriter first = TinyGguf(), second;
    int number = 0;
    for (GgufWriter* part : {&first, &second}) {
      part->Raw("split.no", 2, Encode<uint16_t>(number++));
      part->Raw("split.count", 2, Encode<uint16_t>(2));
    }
    second.Tensor("output.weight", {8, 6}, 0, std::string(8 * 6 * 4, fill));
    WriteFile(directory + "/m-00001-of-00002.gguf", first.Write());
    WriteFile(directory + "/m-00002-of-00002.gguf", second.Write());
    return directory + "/m-00001-of-00002.gguf";
  };
  EXPECT_EQ(Of(parts('a')), Of(parts('a')));
  EXPECT_NE(Of(parts('a')), Of(parts('b')));
}

TEST(FingerprintTest, ADummyIsItsConfigurationAlone) {
  const std::string bare = MakeTempDir();
  WriteFile(bare + "/config.json", kConfig);
  const std::string whole = Directory(SafetensorsOf({{"a", {2, 3}}}));
  EXPECT_EQ(Of(bare, LoadFormat::kDummy), Of(whole, LoadFormat::kDummy));
  EXPECT_NE(Of(whole), Of(whole, LoadFormat::kDummy));
}

TEST(FingerprintTest, ErrorsNameTheFile) {
  const std::string directory = MakeTempDir();
  EXPECT_THAT(ErrorOf(directory + "/none"), HasSubstr("NOT_FOUND: model none: cannot open"));
  EXPECT_THAT(ErrorOf(directory), HasSubstr("NOT_FOUND: config.json: cannot open"));
  WriteFile(directory + "/config.json", kConfig);
  EXPECT_THAT(ErrorOf(directory), HasSubstr("NOT_FOUND: no .safetensors file"));
  WriteFile(directory + "/model.safetensors", "short");
  EXPECT_THAT(ErrorOf(directory), HasSubstr("INVALID_ARGUMENT: model.safetensors: "));
  EXPECT_THAT(ErrorOf(WriteGguf("GGUF")), HasSubstr("INVALID_ARGUMENT: m.gguf: "));
}

}  // namespace
}  // namespace somnus
