#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/gguf/gguf_tensors.h"
#include "checkpoint/tokenizer/gguf_tokenizer.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& bytes) {
  const auto file = MappedFile::Borrow("m.gguf", bytes);
  return GgufFile::Parse(*file).status().ToString();
}

class GgufCheckpointTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& bytes) {
    WriteFile(directory_ + "/m.gguf", bytes);
    return Checkpoint::Open(directory_ + "/m.gguf");
  }
  std::string OpenError(const GgufWriter& writer) { return Open(writer.Write()).status().ToString(); }

  std::string directory_ = MakeTempDir();
};

TEST_F(GgufCheckpointTest, ConfigurationAndTensors) {
  for (const uint32_t version : {2, 3}) {
    const auto checkpoint = Open(TinyGguf().Write(version));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const ModelConfig& config = (*checkpoint)->config();
    EXPECT_EQ(config.name, "m");
    EXPECT_EQ(config.vocab_size, 6);
    EXPECT_EQ(config.head_dim, 4);
    EXPECT_EQ(config.num_kv_heads, 1);
    EXPECT_TRUE(config.tie_word_embeddings);
    EXPECT_EQ(config.stored_type, StorageType::kF32);
    EXPECT_THAT(config.eos_token_ids, ElementsAre(0));
    EXPECT_EQ((*checkpoint)->Find("model.layers.0.mlp.gate_proj.weight")->shape,
              (std::vector<int64_t>{6, 8}));
    EXPECT_EQ((*checkpoint)->Tensors().size(), 11u);
  }
}

// Row r of a projection holds r * 8 .. r * 8 + 7 (plus the tensor's first number) on disk.
TEST_F(GgufCheckpointTest, RowsOfQAndKAreUnpermuted) {
  const auto checkpoint = Open(TinyGguf().Write());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const TensorInfo* q = (*checkpoint)->Find("model.layers.0.self_attn.q_proj.weight");
  ASSERT_NE(q, nullptr);
  std::vector<float> rows(8 * 8), column(8);
  ASSERT_TRUE((*checkpoint)->ReadRows(*q, 0, 8, 0, 8, rows.data()).ok());
  ASSERT_TRUE((*checkpoint)->ReadRows(*q, 0, 8, 5, 6, column.data()).ok());
  const float first = rows[0];
  const int disk_row[8] = {0, 2, 1, 3, 4, 6, 5, 7};  // heads of 4 rows, halves interleaved
  for (int row = 0; row < 8; ++row) {
    EXPECT_EQ(rows[row * 8], first + 8 * disk_row[row]) << row;
    EXPECT_EQ(column[row], first + 8 * disk_row[row] + 5) << row;
  }
  const TensorInfo* v = (*checkpoint)->Find("model.layers.0.self_attn.v_proj.weight");
  ASSERT_TRUE((*checkpoint)->ReadRows(*v, 0, 4, 0, 1, column.data()).ok());
  EXPECT_EQ(column[1] - column[0], 8.0f);
}

TEST_F(GgufCheckpointTest, ReadRowsChecksItsRange) {
  const auto checkpoint = Open(TinyGguf().Write());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const TensorInfo* v = (*checkpoint)->Find("model.layers.0.self_attn.v_proj.weight");
  std::vector<float> out(64);
  const int64_t bad[][4] = {{-1, 1, 0, 8}, {0, 5, 0, 8}, {2, 1, 0, 8},
                            {0, 1, -1, 8}, {0, 1, 0, 9}, {0, 1, 3, 2}};
  for (const auto& r : bad) {
    const absl::Status status = (*checkpoint)->ReadRows(*v, r[0], r[1], r[2], r[3], out.data());
    EXPECT_THAT(status.ToString(),
                HasSubstr("INVALID_ARGUMENT: m.gguf: tensor model.layers.0.self_attn.v_proj"));
  }
  EXPECT_TRUE((*checkpoint)->ReadRows(*v, 4, 4, 8, 8, out.data()).ok());
}

TEST_F(GgufCheckpointTest, OptionsAreReadOrRefused) {
  for (const std::string architecture : {"mamba", "gemma4", "qwen3next", "qwen35", "qwen35moe", "lfm2"}) {
    EXPECT_THAT(
        OpenError(TinyGguf(architecture)),
        HasSubstr("UNIMPLEMENTED: m.gguf: key general.architecture: " + architecture + " is not supported"));
  }
  EXPECT_THAT(OpenError(TinyGguf("qwen3")),
              HasSubstr("tensor model.layers.0.self_attn.q_norm.weight is missing"));
  GgufWriter experts = TinyGguf("qwen3"), mixtral = TinyGguf();
  experts.Uint32("qwen3.expert_count", 8);
  EXPECT_THAT(OpenError(experts), HasSubstr("UNIMPLEMENTED: m.gguf: key qwen3.expert_count"));
  mixtral.Uint32("llama.expert_count", 8);
  EXPECT_THAT(OpenError(mixtral), HasSubstr("INVALID_ARGUMENT: m.gguf: key llama.expert_used_count"));
  GgufWriter partial = TinyGguf();
  partial.Uint32("llama.rope.dimension_count", 2);
  EXPECT_THAT(OpenError(partial), HasSubstr("UNIMPLEMENTED: m.gguf: key llama.rope.dimension_count"));
  GgufWriter values = TinyGguf();
  values.Uint32("llama.attention.value_length", 8);
  EXPECT_THAT(OpenError(values), HasSubstr("UNIMPLEMENTED: m.gguf: key llama.attention.value_length"));
  GgufWriter wide = TinyGguf();  // heads of 8: 16 rows are two heads
  wide.Uint32("llama.attention.key_length", 8);
  EXPECT_THAT(OpenError(wide), HasSubstr("self_attn.q_proj.weight has shape [8, 8]"));
  GgufWriter longrope = TinyGguf();
  longrope.String("llama.rope.scaling.type", "longrope");
  EXPECT_THAT(OpenError(longrope), HasSubstr("UNIMPLEMENTED: m.gguf: key llama.rope.scaling.type: longrope"));
  GgufWriter linear = TinyGguf();
  linear.String("llama.rope.scaling.type", "linear");
  linear.Float32("llama.rope.scaling.factor", 4.0f);
  const auto checkpoint = Open(linear.Write());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->config().rope.type, RopeConfig::Type::kLinear);
  EXPECT_EQ((*checkpoint)->config().rope.factor, 4.0);
}

TEST_F(GgufCheckpointTest, Yarn) {
  GgufWriter plain = TinyGguf();
  plain.String("llama.rope.scaling.type", "yarn");
  plain.Float32("llama.rope.scaling.factor", 4.0f);
  plain.Uint32("llama.rope.scaling.original_context_length", 32);
  const auto checkpoint = Open(plain.Write());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const RopeConfig& rope = (*checkpoint)->config().rope;
  EXPECT_EQ(rope.type, RopeConfig::Type::kYarn);
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_EQ(rope.original_max_position_embeddings, 32);
  EXPECT_EQ(std::tie(rope.beta_fast, rope.beta_slow, rope.truncate), std::make_tuple(32.0, 1.0, true));
  EXPECT_NEAR(rope.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  EXPECT_EQ((*checkpoint)->config().max_position_embeddings, 128);  // the file's context_length is 64
  GgufWriter all = TinyGguf();
  all.String("llama.rope.scaling.type", "yarn");
  all.Float32("llama.rope.scaling.factor", 2.0f);
  all.Float32("llama.rope.scaling.yarn_ext_factor", 1.0f);
  all.Float32("llama.rope.scaling.yarn_beta_fast", 16.0f);
  all.Float32("llama.rope.scaling.yarn_beta_slow", 2.0f);
  all.Float32("llama.rope.scaling.attn_factor", 0.5f);
  all.Float32("llama.rope.scaling.yarn_log_multiplier", 1.0f);
  const auto other = Open(all.Write());
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ((*other)->config().rope.beta_fast, 16.0);
  EXPECT_EQ((*other)->config().rope.beta_slow, 2.0);
  EXPECT_EQ((*other)->config().rope.original_max_position_embeddings, 64);
  EXPECT_NEAR((*other)->config().rope.attention_factor, 0.5, 1e-12);
  for (const char* key : {"factor", "yarn_beta_fast", "yarn_beta_slow", "attn_factor"}) {
    for (const float value : {0.0f, -1.0f, std::nanf("")}) {
      GgufWriter bad = TinyGguf();
      bad.String("llama.rope.scaling.type", "yarn");
      bad.Float32(std::string("llama.rope.scaling.") + key, value);
      EXPECT_THAT(OpenError(bad), HasSubstr("INVALID_ARGUMENT: m.gguf: key llama.rope.scaling."))
          << key << value;
    }
  }
}

TEST_F(GgufCheckpointTest, RopeFactors) {
  GgufWriter good = TinyGguf();
  good.Tensor("rope_freqs.weight", {2}, 0, Encode(1.0f) + Encode(32.0f));
  const auto checkpoint = Open(good.Write());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT((*checkpoint)->config().rope.freq_factors, ElementsAre(1.0f, 32.0f));
  GgufWriter wrong_size = TinyGguf();
  wrong_size.Tensor("rope_freqs.weight", {3}, 0, std::string(12, '\0'));
  EXPECT_THAT(OpenError(wrong_size), HasSubstr("rope_freqs.weight has shape [3]"));
  GgufWriter zero = TinyGguf();
  zero.Tensor("rope_freqs.weight", {2}, 0, Encode(1.0f) + Encode(0.0f));
  EXPECT_THAT(OpenError(zero), HasSubstr("rope_freqs.weight: factor 0"));
}

TEST_F(GgufCheckpointTest, ContradictionsAreNamed) {
  GgufWriter vocabulary = TinyGguf();
  vocabulary.Uint32("llama.vocab_size", 7);
  EXPECT_THAT(OpenError(vocabulary), HasSubstr("tensor model.embed_tokens.weight has shape [6, 8]"));
  GgufWriter duplicate = TinyGguf();
  duplicate.Tensor("output_norm.weight", {8}, 0, std::string(32, '\0'));
  EXPECT_THAT(OpenError(duplicate), HasSubstr("tensor model.norm.weight is there more than once"));
  GgufWriter kind = TinyGguf();
  kind.String("llama.rope.freq_base", "high");
  EXPECT_THAT(OpenError(kind), HasSubstr("key llama.rope.freq_base: not a finite number"));
  EXPECT_THAT(OpenError(GgufWriter()), HasSubstr("key general.architecture: missing"));
}

// Converters write such ids, and other loaders accept the files.
TEST_F(GgufCheckpointTest, IdsOutsideOfTheVocabularyCountAsNotGiven) {
  GgufWriter w = TinyGguf();
  for (const char* name : {"bos", "eot", "eom", "unknown", "padding"}) {
    w.Uint32(absl::StrCat("tokenizer.ggml.", name, "_token_id"), name[0] == 'b' ? 6 : 4'000'000'000);
  }
  const auto checkpoint = Open(w.Write());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->config().bos_token_id, -1);
  EXPECT_EQ((*checkpoint)->config().pad_token_id, -1);
  EXPECT_THAT((*checkpoint)->config().eos_token_ids, ElementsAre(0));
  const auto data = (*checkpoint)->ReadTokenizer();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->bos_token + data->unk_token_text + data->pad_token, "");
  ASSERT_EQ(data->warnings.size(), 5u);
  EXPECT_EQ(
      data->warnings[0],
      "tokenizer.ggml.bos_token_id: 6 is outside the vocabulary of 6 tokens, and is taken as not given");
}

TEST_F(GgufCheckpointTest, Tokenizer) {
  const auto checkpoint = Open(TinyGguf().Write());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto data = (*checkpoint)->ReadTokenizer();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->tokens, ElementsAre("<s>", "a", "b", "ab", "", "<tool>"));
  EXPECT_THAT(data->merges, ElementsAre(std::make_pair("a", "b")));
  ASSERT_EQ(data->added_tokens.size(), 2u);
  EXPECT_TRUE(data->added_tokens[0].special);
  EXPECT_EQ(data->added_tokens[1].content, "<tool>");
  EXPECT_FALSE(data->added_tokens[1].special);
  ASSERT_EQ(data->pre_tokenizer.size(), 2u);
  EXPECT_EQ(data->pre_tokenizer[0].kind, PreTokenizerStep::Kind::kDigits);
  EXPECT_TRUE(data->pre_tokenizer[1].use_regex);
  EXPECT_EQ(data->eos_token, "<s>");
  EXPECT_TRUE(data->post_processor.prefix_ids.empty());
}

GgufWriter TokenizerOnly(const std::string& model, const std::string& pre) {
  GgufWriter w;
  w.String("tokenizer.ggml.model", model);
  w.String("tokenizer.ggml.pre", pre);
  w.Strings("tokenizer.ggml.tokens", {"a", "b", "<s>"});
  w.Strings("tokenizer.ggml.merges", {});
  w.Uint32("tokenizer.ggml.bos_token_id", 2);
  return w;
}

absl::StatusOr<TokenizerData> ReadTokenizerOf(const GgufWriter& writer) {
  const std::string bytes = writer.Write();
  const auto file = MappedFile::Borrow("m.gguf", bytes);
  const auto gguf = GgufFile::Parse(*file);
  if (!gguf.ok()) return gguf.status();
  return ReadGgufTokenizer(*gguf);
}

TEST(GgufTokenizer, NamedPreTokenizers) {
  const auto llama = ReadTokenizerOf(TokenizerOnly("gpt2", "llama-bpe"));
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_TRUE(llama->ignore_merges && llama->add_bos_token);
  EXPECT_THAT(llama->post_processor.prefix_ids, ElementsAre(2));
  EXPECT_EQ(llama->pre_tokenizer.size(), 2u);
  EXPECT_FALSE(llama->pre_tokenizer[1].use_regex);
  const auto qwen = ReadTokenizerOf(TokenizerOnly("gpt2", "qwen2"));
  ASSERT_TRUE(qwen.ok()) << qwen.status();
  ASSERT_EQ(qwen->normalizer.size(), 1u);
  EXPECT_EQ(qwen->normalizer[0].kind, NormalizerStep::Kind::kNfc);
  EXPECT_TRUE(qwen->post_processor.prefix_ids.empty());
  EXPECT_EQ(ReadTokenizerOf(TokenizerOnly("gpt2", "default"))->pre_tokenizer.size(), 5u);
  EXPECT_EQ(ReadTokenizerOf(TokenizerOnly("gpt2", "gpt-2"))->pre_tokenizer.size(), 1u);
}

TEST(GgufTokenizer, Errors) {
  EXPECT_THAT(ReadTokenizerOf(GgufWriter()).status().ToString(),
              HasSubstr("NOT_FOUND: m.gguf: no tokenizer: key tokenizer.ggml.model is missing"));
  EXPECT_THAT(ReadTokenizerOf(TokenizerOnly("bert", "default")).status().ToString(),
              HasSubstr("UNIMPLEMENTED: m.gguf: key tokenizer.ggml.model: a tokenizer of kind bert"));
  EXPECT_THAT(ReadTokenizerOf(TokenizerOnly("llama", "default")).status().ToString(),
              HasSubstr("INVALID_ARGUMENT: m.gguf: key tokenizer.ggml.scores: missing"));
  EXPECT_THAT(ReadTokenizerOf(TokenizerOnly("gpt2", "klingon")).status().ToString(),
              HasSubstr("UNIMPLEMENTED: m.gguf: key tokenizer.ggml.pre: klingon"));
  EXPECT_TRUE(absl::IsNotFound(ReadTokenizerOf(GgufWriter()).status()));
  for (const char* merge : {"", "a", "a ", " a", "ab"}) {
    GgufWriter w;
    w.String("tokenizer.ggml.model", "gpt2");
    w.Strings("tokenizer.ggml.tokens", {"a"});
    w.Strings("tokenizer.ggml.merges", {merge});
    EXPECT_THAT(ReadTokenizerOf(w).status().ToString(), HasSubstr("key tokenizer.ggml.merges: element 0"))
        << merge;
  }
  GgufWriter types = TokenizerOnly("gpt2", "gpt-2");
  types.Int32s("tokenizer.ggml.token_type", {1, 1});
  EXPECT_THAT(ReadTokenizerOf(types).status().ToString(), HasSubstr("2 types for 3 tokens"));
  GgufWriter outside = TokenizerOnly("gpt2", "gpt-2");
  outside.Uint32("tokenizer.ggml.eos_token_id", 3);
  EXPECT_EQ(ReadTokenizerOf(outside)->eos_token, "");
}

TEST(GgufFile, EveryTruncationIsAnError) {
  const std::string bytes = TinyGguf().Write();
  for (size_t size = 0; size < bytes.size(); size += size < 2000 ? 1 : 7) {
    EXPECT_THAT(ErrorOf(bytes.substr(0, size)), HasSubstr("INVALID_ARGUMENT: m.gguf: ")) << size;
  }
  EXPECT_EQ(ErrorOf(bytes), "OK");
}

TEST(GgufFile, CountsAndLengthsBeyondTheFile) {
  const std::string head = "GGUF" + Encode<uint32_t>(3);
  for (const uint64_t huge : {uint64_t{1000}, uint64_t{1} << 32, uint64_t{1} << 62, ~uint64_t{0}}) {
    EXPECT_THAT(ErrorOf(head + Encode(huge) + Encode<uint64_t>(0)), HasSubstr("too short for the"));
    EXPECT_THAT(ErrorOf(head + Encode<uint64_t>(0) + Encode(huge)), HasSubstr("too short for the"));
    GgufWriter text;
    text.Raw("k", 8, Encode(huge) + "abc");
    EXPECT_THAT(ErrorOf(text.Write()), HasSubstr("m.gguf: key k: a length of"));
    for (const uint32_t element : {0, 5, 8, 9, 12}) {
      GgufWriter array;
      array.Raw("k", 9, Encode(element) + Encode(huge) + std::string(40, '\0'));
      EXPECT_THAT(ErrorOf(array.Write()), HasSubstr("m.gguf: key k: ")) << element;
    }
    GgufWriter dims;
    dims.TensorAt("t", {huge, 4}, 0, 0);
    EXPECT_THAT(ErrorOf(dims.Write()), HasSubstr("m.gguf: tensor t: "));
    GgufWriter offset;
    offset.TensorAt("t", {4}, 0, huge & ~uint64_t{31});
    EXPECT_THAT(ErrorOf(offset.Write()), HasSubstr("m.gguf: tensor t: 16 bytes at offset"));
  }
}

TEST(GgufFile, NestedArraysAreBounded) {
  auto nested = [](int depth) {
    std::string encoded;
    for (int i = 1; i < depth; ++i) encoded += Encode<uint32_t>(9) + Encode<uint64_t>(1);
    GgufWriter w;
    w.Raw("k", 9, encoded + Encode<uint32_t>(0) + Encode<uint64_t>(1) + "x");
    return w.Write();
  };
  EXPECT_EQ(ErrorOf(nested(4)), "OK");
  EXPECT_THAT(ErrorOf(nested(5)), HasSubstr("nested too deeply"));
  EXPECT_THAT(ErrorOf(nested(100000)), HasSubstr("nested too deeply"));
}

TEST(GgufFile, BadHeaders) {
  EXPECT_THAT(ErrorOf("GGML0000"), HasSubstr("not a GGUF file"));
  EXPECT_THAT(ErrorOf(TinyGguf().Write(1)), HasSubstr("UNIMPLEMENTED: m.gguf: GGUF version 1"));
  EXPECT_THAT(ErrorOf(TinyGguf().Write(0x03000000)), HasSubstr("big-endian"));
  GgufWriter twice;
  twice.Bool("k", true);
  twice.Bool("k", false);
  EXPECT_THAT(ErrorOf(twice.Write()), HasSubstr("key k is there more than once"));
  GgufWriter type;
  type.Raw("k", 13, "");
  EXPECT_THAT(ErrorOf(type.Write()), HasSubstr("key k: unknown type 13"));
  for (const uint32_t alignment : {0, 3, 48, 1 << 30}) {
    GgufWriter w;
    w.Uint32("general.alignment", alignment);
    EXPECT_THAT(ErrorOf(w.Write()), HasSubstr("key general.alignment")) << alignment;
  }
}

TEST(GgufFile, BadTensors) {
  auto with = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    GgufWriter w;
    w.Tensor("first", {32}, 0, std::string(128, 'x'));
    w.TensorAt("t", dims, type, offset);
    return ErrorOf(w.Write());
  };
  EXPECT_EQ(with({32}, 0, 0).substr(0, 70),
            "INVALID_ARGUMENT: m.gguf: tensor t: its data overlaps that of first");
  EXPECT_THAT(with({8}, 0, 96), HasSubstr("overlaps"));
  EXPECT_THAT(with({8}, 0, 4), HasSubstr("offset 4 is not aligned"));
  EXPECT_THAT(with({8}, 0, 128), HasSubstr("do not fit the 128 bytes of data"));
  EXPECT_THAT(with({}, 0, 0), HasSubstr("tensor t: 0 dimensions"));
  EXPECT_THAT(with({1, 1, 1, 1, 1}, 0, 0), HasSubstr("5 dimensions"));
  EXPECT_THAT(with({0}, 0, 0), HasSubstr("bad shape [0]"));
  EXPECT_THAT(with({uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0), HasSubstr("bad shape"));
  EXPECT_THAT(with({uint64_t{1} << 62}, 0, 0), HasSubstr("bad shape"));
  EXPECT_THAT(with({33}, 8, 0), HasSubstr("rows of 33 are not whole Q8_0 blocks of 32"));
  EXPECT_THAT(with({128}, 12, 0), HasSubstr("rows of 128 are not whole Q4_K blocks of 256"));
}

TEST(GgufFile, UnknownTensorTypesAreErrorsOnlyWhereTheyAreNeeded) {
  GgufWriter w = TinyGguf();
  w.TensorAt("mystery", {8}, 99, 0);
  EXPECT_EQ(ErrorOf(w.Write()), "OK");
  GgufWriter needed;
  needed.String("general.architecture", "llama");
  needed.TensorAt("token_embd.weight", {8, 6}, 16, 0);
  const std::string directory = MakeTempDir();
  WriteFile(directory + "/m.gguf", needed.Write());
  EXPECT_EQ(Checkpoint::Open(directory + "/m.gguf").status().ToString(),
            "UNIMPLEMENTED: m.gguf: tensor model.embed_tokens.weight has type IQ2_XXS (number 16 of "
            "ggml), which is not supported");
}

TEST(GgufNames, AreTranslated) {
  const Family* llama = FindFamily([](const Family& f) { return std::string(f.model_type) == "llama"; });
  ASSERT_NE(llama, nullptr);
  EXPECT_EQ(CanonicalGgufName(*llama, "blk.12.attn_q.bias"), "model.layers.12.self_attn.q_proj.bias");
  EXPECT_EQ(CanonicalGgufName(*llama, "output.weight"), "lm_head.weight");
  for (const char* name : {"blk.x.attn_q.weight", "blk.1.attn_q.scale", "rope_freqs.weight", "weight", "",
                           ".", "blk..attn_q.weight"}) {
    EXPECT_EQ(CanonicalGgufName(*llama, name), name);
  }
}

// Such a tensor must not count as absent: the model would be another one.
TEST_F(GgufCheckpointTest, OptionalTensorsOfUnknownTypesAreErrors) {
  for (const char* name : {"output.weight", "rope_freqs.weight", "blk.0.attn_q.bias"}) {
    GgufWriter w = TinyGguf();
    w.Tensor(name, {8, 6}, 99, std::string(64, 'x'));
    EXPECT_THAT(OpenError(w), HasSubstr("UNIMPLEMENTED: m.gguf: tensor ")) << name;
    EXPECT_THAT(OpenError(w), HasSubstr("has type number 99 of ggml, which is not supported")) << name;
  }
}

}  // namespace
}  // namespace somnus
