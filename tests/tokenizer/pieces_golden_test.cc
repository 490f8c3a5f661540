// Tokenizers of SentencePiece's kind, and directories without tokenizer.json, through the readers of
// checkpoints: the ids and texts of other implementations (tests/data/make_pieces_goldens.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/tokenizer/gguf_tokenizer.h"
#include "checkpoint/tokenizer/hf_tokenizer.h"
#include "checkpoint/tokenizer/sentencepiece_model.h"
#include "tests/checkpoint/writers.h"
#include "text/tokenizer/tokenizer.h"

namespace somnus {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kData[] = "tests/data/pieces/";

std::string ReadData(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<json> Lines(const std::string& name) {
  std::istringstream text(ReadData(kData + name));
  std::vector<json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  EXPECT_FALSE(lines.empty()) << name;
  return lines;
}

std::unique_ptr<Tokenizer> Make(absl::StatusOr<TokenizerData> data) {
  EXPECT_TRUE(data.ok()) << data.status();
  if (!data.ok()) return nullptr;
  auto tokenizer = Tokenizer::Create(*std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip) {
  IncrementalDetokenizer stream(&tokenizer, skip);
  std::string text;
  for (const int32_t id : ids) text += stream.Append(id);
  return text + stream.Flush();
}

// A case is [text, ids, decoded without special tokens, decoded with special tokens]; the decoded texts may
// be missing.
void Check(const Tokenizer* tokenizer, const json& cases) {
  ASSERT_NE(tokenizer, nullptr);
  ASSERT_GE(cases.size(), 40u);
  for (const json& one : cases) {
    const std::string text = one[0];
    const auto ids = one[1].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer->Encode(text, true), ids) << one[0].dump();
    for (size_t i = 2; i < one.size(); ++i) {
      EXPECT_EQ(tokenizer->Decode(ids, i == 2), one[i].get<std::string>()) << one[0].dump();
      EXPECT_EQ(Stream(*tokenizer, ids, i == 2), one[i].get<std::string>()) << one[0].dump();
    }
  }
}

json Patched(json base, const json& parts) {
  for (const auto& [key, value] : parts.items()) {
    if (key == "model") {
      base["model"].update(value);
    } else if (key == "rstrip" || key == "normalized") {
      for (json& token : base["added_tokens"]) {
        for (const json& content : value) token[key] = token[key] || token["content"] == content;
      }
    } else {
      base[key] = value;
    }
  }
  return base;
}

TEST(PiecesGoldenTest, FormsOfTokenizerJson) {
  const json base = json::parse(ReadData(std::string(kData) + "tokenizer.json"));
  for (const json& form : Lines("json_cases.jsonl")) {
    SCOPED_TRACE(form["name"].dump());
    const std::string directory = MakeTempDir();
    WriteFile(directory + "/tokenizer.json", Patched(base, form["parts"]).dump());
    Check(Make(ReadHfTokenizer(directory)).get(), form["cases"]);
  }
}

TEST(PiecesGoldenTest, TokenizerModelInADirectory) {
  for (const json& line : Lines("model_cases.jsonl")) {
    SCOPED_TRACE(line["config"].dump());
    const std::string directory = MakeTempDir();
    WriteFile(directory + "/tokenizer.model", ReadData(std::string(kData) + "tokenizer.model"));
    WriteFile(directory + "/tokenizer_config.json", line["config"].dump());
    Check(Make(ReadHfTokenizer(directory)).get(), line["cases"]);
  }
}

TEST(PiecesGoldenTest, VocabAndMergesByClass) {
  const json tiny = json::parse(ReadData("tests/data/tiny/qwen3/tokenizer.json"));
  std::string merges = "#version: 0.2\n";
  for (const json& merge : tiny["model"]["merges"]) {
    merges += merge.is_string() ? merge.get<std::string>()
                                : merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    merges += "\n";
  }
  for (const json& line : Lines("class_cases.jsonl")) {
    SCOPED_TRACE(line["config"].dump());
    const std::string directory = MakeTempDir();
    WriteFile(directory + "/vocab.json", tiny["model"]["vocab"].dump());
    WriteFile(directory + "/merges.txt", merges);
    WriteFile(directory + "/tokenizer_config.json", line["config"].dump());
    Check(Make(ReadHfTokenizer(directory)).get(), line["cases"]);
  }
}

// A GGUF file with the pieces of tokenizer.model.
GgufWriter PiecesGguf(SentencePieces pieces, const std::string& architecture = "llama") {
  GgufWriter writer;
  writer.String("general.architecture", architecture);
  writer.String("tokenizer.ggml.model", "llama");
  writer.Strings("tokenizer.ggml.tokens", pieces.pieces);
  writer.Float32s("tokenizer.ggml.scores", pieces.scores);
  std::vector<int32_t> types;
  for (const PieceType type : pieces.types) types.push_back(static_cast<int32_t>(type));
  writer.Int32s("tokenizer.ggml.token_type", types);
  return writer;
}

SentencePieces Pieces() {
  const auto model = ParseSentencePieceModel("m", ReadData(std::string(kData) + "tokenizer.model"));
  EXPECT_TRUE(model.ok()) << model.status();
  return model->vocabulary;
}

absl::StatusOr<TokenizerData> ReadGguf(const GgufWriter& writer) {
  const std::string bytes = writer.Write();
  const auto file = MappedFile::Borrow("m.gguf", bytes);
  const absl::StatusOr<GgufFile> gguf = GgufFile::Parse(*file);
  if (!gguf.ok()) return gguf.status();
  return ReadGgufTokenizer(*gguf);
}

// llama.cpp puts a space also behind added tokens, as transformers does with "legacy".
TEST(PiecesGoldenTest, GgufFiles) {
  GgufWriter writer = PiecesGguf(Pieces());
  writer.Bool("tokenizer.ggml.add_eos_token", true);
  const json line = Lines("model_cases.jsonl")[0];
  ASSERT_EQ(line["config"]["legacy"], true);
  ASSERT_EQ(line["config"]["add_eos_token"], true);
  Check(Make(ReadGguf(writer)).get(), line["cases"]);
}

TEST(PiecesGoldenTest, GgufWithoutSpacePrefix) {
  GgufWriter writer = PiecesGguf(Pieces());
  writer.Bool("tokenizer.ggml.add_space_prefix", false);
  writer.Bool("tokenizer.ggml.add_bos_token", false);
  const auto tokenizer = Make(ReadGguf(writer));
  ASSERT_NE(tokenizer, nullptr);
  for (const json& form : Lines("json_cases.jsonl")) {
    if (form["name"] == "gemma") {
      for (const json& one : form["cases"]) {
        const std::string text = one[0];
        const auto ids = one[1].get<std::vector<int32_t>>();
        EXPECT_EQ(tokenizer->Encode(text, true), ids) << one[0].dump();
        EXPECT_EQ(tokenizer->Decode(ids, false), one[3].get<std::string>()) << one[0].dump();
      }
    }
  }
}

TEST(PiecesGoldenTest, GgufOfPhi3SwallowsSpaceBehindTokens) {
  const auto phi3 = Make(ReadGguf(PiecesGguf(Pieces(), "phi3"))),
             llama = Make(ReadGguf(PiecesGguf(Pieces())));
  ASSERT_TRUE(phi3 != nullptr && llama != nullptr);
  EXPECT_EQ(phi3->Encode("<|user|>\n x", false), phi3->Encode("<|user|>x", false));
  EXPECT_NE(phi3->Encode("<s> x", false), phi3->Encode("<s>x", false));
  EXPECT_NE(llama->Encode("<|user|>\n x", false), llama->Encode("<|user|>x", false));
}

TEST(PiecesGoldenTest, DamagedGguf) {
  const auto error = [](const std::function<void(SentencePieces*)>& change) {
    SentencePieces pieces = Pieces();
    change(&pieces);
    return ReadGguf(PiecesGguf(std::move(pieces))).status().ToString();
  };
  EXPECT_THAT(error([](SentencePieces* p) { p->scores.pop_back(); }),
              HasSubstr("INVALID_ARGUMENT: m.gguf: key tokenizer.ggml.scores: "));
  EXPECT_THAT(error([](SentencePieces* p) { p->types.pop_back(); }),
              HasSubstr("INVALID_ARGUMENT: m.gguf: key tokenizer.ggml.token_type: "));
  EXPECT_THAT(error([](SentencePieces* p) { p->types.back() = static_cast<PieceType>(9); }),
              HasSubstr("UNIMPLEMENTED: m.gguf: key tokenizer.ggml.token_type: type 9"));
}

class PiecesDirectory : public ::testing::Test {
 protected:
  std::string ErrorWith(const std::string& config) {
    WriteFile(directory_ + "/tokenizer_config.json", config);
    return ReadHfTokenizer(directory_).status().ToString();
  }
  std::string directory_ = MakeTempDir();
};

TEST_F(PiecesDirectory, WhatIsNotKnownIsRefusedByName) {
  const std::string model = ReadData(std::string(kData) + "tokenizer.model");
  WriteFile(directory_ + "/tokenizer.model", model);
  EXPECT_THAT(ReadHfTokenizer(directory_).status().ToString(), HasSubstr("names no tokenizer_class"));
  EXPECT_EQ(ErrorWith(R"({"tokenizer_class":"XLNetTokenizer"})"),
            "UNIMPLEMENTED: tokenizer_config.json: tokenizer_class: XLNetTokenizer is not supported without "
            "tokenizer.json");
  EXPECT_EQ(ErrorWith(R"({"tokenizer_class":"LlamaTokenizerFast"})"), "OK");
  WriteFile(directory_ + "/tokenizer.model", model.substr(0, model.size() / 2));
  EXPECT_THAT(ErrorWith(R"({"tokenizer_class":"LlamaTokenizer"})"),
              HasSubstr("INVALID_ARGUMENT: tokenizer.model: "));
  // trainer_spec.model_type 1, normalizer_spec.precompiled_charsmap "x", treat_whitespace_as_suffix.
  const std::pair<std::string, const char*> cases[] = {
      {"\x12\x02\x18\x01", "a model of kind Unigram"},
      {"\x12\x02\x18\x03", "a model that is not BPE"},
      {"\x1A\x03\x12\x01x", "normalizer_spec.precompiled_charsmap"},
      {std::string("\x1A\x02\x28\x00", 4), "normalizer_spec.escape_whitespaces: false"},
      {"\x12\x03\xC0\x01\x01", "trainer_spec.treat_whitespace_as_suffix"},
      {"\x0A\x05\x0A\x01q\x18\x05", "a piece of type UNUSED"}};
  for (const auto& [more, what] : cases) {
    WriteFile(directory_ + "/tokenizer.model", model + more);
    EXPECT_EQ(ErrorWith(R"({"tokenizer_class":"LlamaTokenizer"})"),
              absl::StrCat("UNIMPLEMENTED: tokenizer.model: ", what, " is not supported"));
  }
}

TEST_F(PiecesDirectory, TheModelsTypeNamesTheClassWhereNoFileDoes) {
  WriteFile(directory_ + "/tokenizer.model", ReadData(std::string(kData) + "tokenizer.model"));
  WriteFile(directory_ + "/config.json", R"({"model_type":"gemma"})");
  auto tokenizer = Make(ReadHfTokenizer(directory_));
  ASSERT_NE(tokenizer, nullptr);
  WriteFile(directory_ + "/config.json", R"({"model_type":"mistral"})");
  tokenizer = Make(ReadHfTokenizer(directory_));
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<int32_t> hello = tokenizer->Encode("Hello", false);
  EXPECT_EQ(tokenizer->Encode("<s>Hello", false).size(), hello.size() + 1);  // <s>, and again a space
  WriteFile(directory_ + "/config.json", R"({"model_type":"bert"})");
  EXPECT_THAT(ReadHfTokenizer(directory_).status().ToString(), HasSubstr("names no tokenizer_class"));
}

TEST_F(PiecesDirectory, AddedTokensOfOldDirectories) {
  WriteFile(directory_ + "/tokenizer.model", ReadData(std::string(kData) + "tokenizer.model"));
  WriteFile(directory_ + "/tokenizer_config.json",
            R"({"tokenizer_class":"LlamaTokenizer","add_bos_token":false})");
  WriteFile(directory_ + "/added_tokens.json", R"({"<x>":700,"<y>":701})");
  WriteFile(directory_ + "/special_tokens_map.json",
            R"({"additional_special_tokens":["<x>"],"eos_token":"<|end|>"})");
  const auto tokenizer = Make(ReadHfTokenizer(directory_));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->Encode("<x><y>", true), (std::vector<int32_t>{700, 701}));
  EXPECT_TRUE(tokenizer->IsSpecial(700));
  EXPECT_FALSE(tokenizer->IsSpecial(701));
  EXPECT_EQ(tokenizer->data().eos_token, "<|end|>");
  EXPECT_EQ(tokenizer->data().bos_token, "<s>");
  for (const char* bad : {R"({"<x>":-1})", R"({"<x>":"7"})", R"({"<x>":900000000})", "[]"}) {
    WriteFile(directory_ + "/added_tokens.json", bad);
    EXPECT_THAT(ReadHfTokenizer(directory_).status().ToString(),
                HasSubstr("INVALID_ARGUMENT: added_tokens.json: "))
        << bad;
  }
}

}  // namespace
}  // namespace somnus
