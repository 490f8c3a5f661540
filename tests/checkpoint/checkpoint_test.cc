// Whole checkpoints through Checkpoint::Open.

#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/family.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kTiny = "tests/data/tiny/";

std::unique_ptr<Checkpoint> Open(const std::string& path) {
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << path << ": " << checkpoint.status();
  return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}

std::vector<float> ReadAll(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  const int64_t cols = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
  std::vector<float> values(tensor.shape[0] * cols);
  EXPECT_TRUE(checkpoint.ReadRows(tensor, 0, tensor.shape[0], 0, cols, values.data()).ok());
  return values;
}

TEST(Checkpoint, AHubsNameForAModelIsNoPath) {
  const auto message = [](const std::string& path) {
    return std::string(Checkpoint::Open(path).status().message());
  };
  for (const char* path : {"meta-llama/Llama-3-8B", "Qwen/Qwen3-0.6B"}) {
    EXPECT_THAT(message(path), HasSubstr("one of a hub is downloaded first")) << path;
  }
  for (const char* path : {"/models/none", "./models/none", "../none", "models/none.gguf", "none", "none/"}) {
    EXPECT_THAT(message(path), ::testing::EndsWith("cannot open: No such file or directory")) << path;
  }
}

TEST(Checkpoint, TokenizersOfTheTinyOnes) {
  for (const char* name : {"llama-uneven", "llama-rope3", "qwen2", "qwen3", "opt"}) {
    const auto checkpoint = Open(kTiny + name);
    ASSERT_NE(checkpoint, nullptr);
    const auto data = checkpoint->ReadTokenizer();
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->tokens.size(), 512u);
    EXPECT_EQ(data->merges.size(), 253u);
    EXPECT_EQ(data->added_tokens.size(), 3u);
    EXPECT_EQ(data->eos_token, "<|im_end|>");
    EXPECT_THAT(data->chat_template, HasSubstr("<|im_start|>"));
  }
}

// The same weights, converted as llama.cpp does: every tensor is equal, with permutation and names undone.
TEST(Checkpoint, GgufEqualsHuggingFace) {
  for (const std::string name : {"llama-rope3", "qwen3"}) {
    const auto hf = Open(kTiny + name), gguf = Open("tests/data/gguf/" + name + ".gguf");
    ASSERT_TRUE(hf != nullptr && gguf != nullptr);
    const ModelConfig &a = hf->config(), &b = gguf->config();
    EXPECT_EQ(a.family, b.family);
    EXPECT_EQ(std::tie(a.vocab_size, a.hidden_size, a.intermediate_size, a.num_layers, a.num_heads,
                       a.num_kv_heads, a.head_dim),
              std::tie(b.vocab_size, b.hidden_size, b.intermediate_size, b.num_layers, b.num_heads,
                       b.num_kv_heads, b.head_dim));
    EXPECT_EQ(std::tie(a.max_position_embeddings, a.tie_word_embeddings, a.stored_type, a.bos_token_id,
                       a.eos_token_ids),
              std::tie(b.max_position_embeddings, b.tie_word_embeddings, b.stored_type, b.bos_token_id,
                       b.eos_token_ids));
    EXPECT_FLOAT_EQ(a.norm_eps, b.norm_eps);
    EXPECT_EQ(a.rope.theta, b.rope.theta);
    for (const TensorInfo* tensor : hf->Tensors()) {
      const TensorInfo* other = gguf->Find(tensor->name);
      ASSERT_NE(other, nullptr) << tensor->name;
      EXPECT_EQ(tensor->shape, other->shape);
      EXPECT_EQ(ReadAll(*hf, *tensor), ReadAll(*gguf, *other)) << tensor->name;
    }
    EXPECT_TRUE(hf->FindTokenizer().ok() && gguf->FindTokenizer().ok());
    const auto ta = hf->ReadTokenizer(), tb = gguf->ReadTokenizer();
    ASSERT_TRUE(ta.ok() && tb.ok()) << ta.status() << tb.status();
    EXPECT_EQ(ta->tokens, tb->tokens);
    EXPECT_EQ(ta->merges, tb->merges);
    EXPECT_EQ(ta->chat_template, tb->chat_template);
    EXPECT_EQ(ta->pre_tokenizer.size(), tb->pre_tokenizer.size());
    EXPECT_EQ(std::tie(ta->bos_token, ta->eos_token, ta->pad_token),
              std::tie(tb->bos_token, tb->eos_token, tb->pad_token));
  }
}

TEST(Checkpoint, GgufKeepsRopeFactors) {
  const auto gguf = Open("tests/data/gguf/llama-rope3.gguf");
  ASSERT_NE(gguf, nullptr);
  const RopeConfig& rope = gguf->config().rope;
  EXPECT_EQ(rope.type, RopeConfig::Type::kDefault);
  ASSERT_EQ(rope.freq_factors.size(), 8u);
  EXPECT_EQ(rope.freq_factors[0], 1.0f);  // 32 positions turn the fastest pair five times
  EXPECT_EQ(rope.freq_factors[7], 32.0f);
}

TEST(Checkpoint, ReadRowsOfAnyRectangle) {
  const auto checkpoint = Open(kTiny + "qwen3");
  ASSERT_NE(checkpoint, nullptr);
  const TensorInfo& tensor = *checkpoint->Find("model.layers.1.mlp.down_proj.weight");  // [48, 112]
  const std::vector<float> all = ReadAll(*checkpoint, tensor);
  std::vector<float> part(5 * 7);
  ASSERT_TRUE(checkpoint->ReadRows(tensor, 40, 45, 100, 107, part.data()).ok());
  for (int row = 0; row < 5; ++row) {
    for (int col = 0; col < 7; ++col) EXPECT_EQ(part[row * 7 + col], all[(40 + row) * 112 + 100 + col]);
  }
}

// A copy of a tiny checkpoint that a test may damage.
class DamagedCheckpoint : public ::testing::Test {
 protected:
  void Copy(const std::string& name) {
    for (const auto& entry : std::filesystem::directory_iterator(kTiny + name)) {
      WriteFile(directory_ + "/" + entry.path().filename().string(), ReadFile(entry.path()));
    }
  }
  void ChangeConfig(const char* key, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(ReadFile(directory_ + "/config.json"));
    config[key] = value;
    WriteFile(directory_ + "/config.json", config.dump());
  }
  std::string Error() {
    const std::string error = Checkpoint::Open(directory_).status().ToString();
    EXPECT_EQ(error.find(directory_), std::string::npos) << "shows a path: " << error;
    return error;
  }

  std::string directory_ = MakeTempDir();
};

TEST_F(DamagedCheckpoint, ConfigAndTensorsHaveToAgree) {
  Copy("llama-uneven");
  EXPECT_EQ(Error(), "OK");
  ChangeConfig("intermediate_size", 137);
  EXPECT_EQ(
      Error(),
      "INVALID_ARGUMENT: model.safetensors: tensor model.layers.0.mlp.gate_proj.weight has shape [136, 72], "
      "the configuration asks for [137, 72]");
  ChangeConfig("intermediate_size", 136);
  ChangeConfig("num_hidden_layers", 3);
  EXPECT_THAT(Error(), HasSubstr("tensor model.layers.2.input_layernorm.weight is missing"));
  ChangeConfig("num_hidden_layers", 2);
  ChangeConfig("attention_bias", true);
  EXPECT_THAT(Error(), HasSubstr("tensor model.layers.0.self_attn.q_proj.bias is missing"));
}

// As in transformers: a head that is stored although the head should be tied is used when the values differ.
TEST_F(DamagedCheckpoint, AStoredHeadBesideATiedEmbedding) {
  Copy("qwen2");
  const std::string file = directory_ + "/model.safetensors";
  const std::string bytes = ReadFile(file);
  uint64_t length;
  std::memcpy(&length, bytes.data(), sizeof(length));
  nlohmann::json header = nlohmann::json::parse(bytes.substr(8, length));
  const std::string data = bytes.substr(8 + length);
  nlohmann::json embedding = header["model.embed_tokens.weight"];
  const uint64_t begin = embedding["data_offsets"][0], end = embedding["data_offsets"][1];
  embedding["data_offsets"] = {data.size(), data.size() + end - begin};
  header["lm_head.weight"] = embedding;
  std::string head = data.substr(begin, end - begin);
  WriteFile(file, SafetensorsFile(header.dump(), data + head));
  auto checkpoint = Open(directory_);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_TRUE(checkpoint->config().tie_word_embeddings);
  header["lm_head.weight"]["dtype"] = "I32";  // as wide as the embedding's F32
  WriteFile(file, SafetensorsFile(header.dump(), data + head));
  EXPECT_THAT(Error(), HasSubstr("tensor lm_head.weight has type I32, which is not supported"));
  header["lm_head.weight"]["dtype"] = embedding["dtype"];
  head.back() = static_cast<char>(head.back() ^ 1);
  WriteFile(file, SafetensorsFile(header.dump(), data + head));
  checkpoint = Open(directory_);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_FALSE(checkpoint->config().tie_word_embeddings);
}

TEST_F(DamagedCheckpoint, NamesWithoutTheOutermostModel) {
  for (const char* name : {"qwen2", "opt"}) {
    Copy(name);
    const std::string file = directory_ + "/model.safetensors";
    std::string bytes = ReadFile(file);
    const auto before = Open(directory_);
    ASSERT_NE(before, nullptr);
    uint64_t length;
    std::memcpy(&length, bytes.data(), sizeof(length));
    nlohmann::json header, old = nlohmann::json::parse(bytes.substr(8, length));
    for (const auto& [key, value] : old.items())
      header[key.rfind("model.", 0) == 0 ? key.substr(6) : key] = value;
    WriteFile(file, SafetensorsFile(header.dump(), bytes.substr(8 + length)));
    const auto after = Open(directory_);
    ASSERT_NE(after, nullptr);
    for (const TensorInfo* tensor : before->Tensors())
      EXPECT_NE(after->Find(tensor->name), nullptr) << tensor->name;
  }
}

TEST_F(DamagedCheckpoint, DtypeIsTheTensorsWhereTheConfigIsSilent) {
  Copy("qwen3");
  ChangeConfig("torch_dtype", nullptr);
  const auto checkpoint = Open(directory_);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->config().stored_type, StorageType::kBF16);
  EXPECT_FALSE(checkpoint->config().stored_type_given);
}

TEST_F(DamagedCheckpoint, MissingFiles) {
  EXPECT_THAT(Error(), HasSubstr("NOT_FOUND: config.json"));
  Copy("llama-uneven");
  std::filesystem::remove(directory_ + "/model.safetensors");
  EXPECT_THAT(Error(), HasSubstr("NOT_FOUND: no .safetensors file"));
  EXPECT_THAT(Checkpoint::Open(directory_ + "/nowhere").status().ToString(),
              HasSubstr("NOT_FOUND: model nowhere"));
}

TEST_F(DamagedCheckpoint, WithoutATokenizerTheTensorsStay) {
  Copy("llama-uneven");
  std::filesystem::remove(directory_ + "/tokenizer.json");
  for (const LoadFormat format : {LoadFormat::kAuto, LoadFormat::kDummy}) {
    const auto checkpoint = Checkpoint::Open(directory_, format);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_THAT((*checkpoint)->FindTokenizer().ToString(), HasSubstr("NOT_FOUND: no tokenizer"));
    EXPECT_EQ((*checkpoint)->ReadTokenizer().status(), (*checkpoint)->FindTokenizer());
    EXPECT_NE((*checkpoint)->Find("model.norm.weight"), nullptr);
  }
}

TEST_F(DamagedCheckpoint, TheDirectoryMayEndInASlash) {
  Copy("llama-uneven");
  const auto checkpoint = Open(directory_ + "/");
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->config().name, std::filesystem::path(directory_).filename());
}

TEST_F(DamagedCheckpoint, ADirectoryIsNamedByWhatItsPathResolvesTo) {
  Copy("llama-uneven");
  for (const LoadFormat format : {LoadFormat::kAuto, LoadFormat::kDummy}) {
    const auto checkpoint = Checkpoint::Open(directory_ + "/.", format);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->config().name, std::filesystem::path(directory_).filename());
  }
}

// models--OWNER--NAME/snapshots/HASH/FILE is a link to models--OWNER--NAME/blobs/HASH.
TEST_F(DamagedCheckpoint, TheCacheOfAHub) {
  Copy("qwen3");
  const std::string model = directory_ + "/models--some--Tiny-Qwen", snapshot = model + "/snapshots/0a1b2c";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(model + "/blobs");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory_))
    if (entry.is_regular_file()) names.push_back(entry.path().filename());
  for (const std::string& name : names) {
    std::filesystem::rename(directory_ + "/" + name, model + "/blobs/blob-of-" + name);
    std::filesystem::create_symlink("../../blobs/blob-of-" + name, snapshot + "/" + name);
  }
  const auto checkpoint = Open(snapshot);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->config().name, "Tiny-Qwen");
  EXPECT_TRUE(checkpoint->ReadTokenizer().ok());
}

TEST_F(DamagedCheckpoint, AHeadThatIsNotStoredIsTiedWhereTheConfigIsSilent) {
  Copy("qwen3");
  ChangeConfig("tie_word_embeddings", nullptr);
  const auto checkpoint = Open(directory_);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_TRUE(checkpoint->config().tie_word_embeddings);
  ChangeConfig("tie_word_embeddings", false);
  EXPECT_THAT(Error(), HasSubstr("tensor lm_head.weight is missing"));
}

// As transformers 5 saves a Mistral3ForConditionalGeneration.
TEST_F(DamagedCheckpoint, AHeadThatIsNotStoredIsTiedWhereTheWrapperSaysSo) {
  Copy("qwen3");
  const std::string file = directory_ + "/config.json";
  nlohmann::json text = nlohmann::json::parse(ReadFile(file));
  text.erase("architectures");
  text["tie_word_embeddings"] = false;
  nlohmann::json wrapper = {{"architectures", {"SomeForConditionalGeneration"}}, {"text_config", text}};
  WriteFile(file, wrapper.dump());
  EXPECT_THAT(Error(), HasSubstr("tensor lm_head.weight is missing"));
  wrapper["tie_word_embeddings"] = true;
  WriteFile(file, wrapper.dump());
  const auto checkpoint = Open(directory_);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_TRUE(checkpoint->config().tie_word_embeddings);
}

// A refusal says what to give instead.
TEST_F(DamagedCheckpoint, APathThatIsNoModelButNearOne) {
  Copy("qwen3");
  std::filesystem::remove(directory_ + "/config.json");
  EXPECT_THAT(Error(), ::testing::EndsWith("config.json: cannot open: No such file or directory"));
  WriteFile(directory_ + "/m.GGUF", "");
  EXPECT_THAT(Error(), HasSubstr("No such file or directory; of the GGUF files in a directory one is given"));
  WriteFile(directory_ + "/adapter_config.json", "{}");
  EXPECT_THAT(Error(), HasSubstr("No such file or directory; an adapter is given by --lora-modules"));
  WriteFile(directory_ + "/config.json", "{");
  EXPECT_THAT(Error(), ::testing::Not(HasSubstr("given")));
  EXPECT_EQ(
      Checkpoint::Open(directory_ + "/model.safetensors").status().ToString(),
      "INVALID_ARGUMENT: model.safetensors: not a GGUF file; of a Hugging Face checkpoint the directory "
      "is given");
  EXPECT_EQ(Checkpoint::Open(directory_ + "/m.GGUF").status().ToString(),
            "INVALID_ARGUMENT: m.GGUF: not a GGUF file");
}

TEST_F(DamagedCheckpoint, AGitLfsPointerIsCalledThat) {
  Copy("qwen3");
  for (const char* name : {"model.safetensors", "config.json"}) {
    WriteFile(directory_ + "/" + name,
              "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n");
    EXPECT_THAT(Error(), HasSubstr(std::string(name) + ": a Git LFS pointer in place of the file"));
  }
  WriteFile(directory_ + "/m.gguf",
            "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n");
  EXPECT_THAT(Checkpoint::Open(directory_ + "/m.gguf").status().ToString(),
              HasSubstr("m.gguf: a Git LFS pointer in place of the file"));
}

// A hub's cache is full of links. Without end tokens or chat template a model must not be served.
TEST_F(DamagedCheckpoint, ALinkToNothingIsNoMissingFile) {
  for (const char* file : {"model.safetensors", "config.json", "generation_config.json"}) {
    Copy("llama-uneven");
    const std::string path = absl::StrCat(directory_, "/", file);
    std::filesystem::remove(path);
    std::filesystem::create_symlink("../blobs/0123", path);
    EXPECT_EQ(Error(), absl::StrCat("FAILED_PRECONDITION: ", file,
                                    ": a link to a file that is not there (is the download complete?)"));
    std::filesystem::remove(path);
  }
}

TEST_F(DamagedCheckpoint, SpecialFilesDoNotHang) {
  Copy("llama-uneven");
  std::filesystem::remove(directory_ + "/model.safetensors");
  ASSERT_EQ(mkfifo((directory_ + "/model.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(Error(), "INVALID_ARGUMENT: model.safetensors: not a regular file");
  WriteFile(directory_ + "/empty.gguf", "");
  EXPECT_EQ(Checkpoint::Open(directory_ + "/empty.gguf").status().ToString(),
            "INVALID_ARGUMENT: empty.gguf: not a GGUF file");
}

}  // namespace
}  // namespace somnus
