#include "checkpoint/tokenizer/hf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "checkpoint/model_config.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = PreTokenizerStep::Kind;

json Minimal() {
  return json::parse(
      R"({"added_tokens":[{"id":3,"content":"<s>","special":true,"lstrip":true}],"normalizer":null,
    "pre_tokenizer":null,"post_processor":null,"decoder":null,
    "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"],"ignore_merges":true,"unk_token":null}})");
}

absl::StatusOr<TokenizerData> Parse(const std::string& text) {
  TokenizerData data;
  const absl::Status status = ParseTokenizerJson("tokenizer.json", text, &data);
  if (!status.ok()) return status;
  return data;
}

std::string ErrorOf(const json& file) { return Parse(file.dump()).status().ToString(); }

// Minimal() with one key changed; `text` is JSON.
json With(const char* key, const char* text) {
  json file = Minimal();
  file[json::json_pointer(key)] = json::parse(text);
  return file;
}

TEST(TokenizerJson, Basics) {
  const auto data = Parse(Minimal().dump());
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->tokens, ElementsAre("a", "b", "ab"));
  EXPECT_THAT(data->merges, ElementsAre(std::make_pair("a", "b")));
  ASSERT_EQ(data->added_tokens.size(), 1u);
  EXPECT_EQ(data->added_tokens[0].id, 3);
  EXPECT_TRUE(data->added_tokens[0].special && data->added_tokens[0].lstrip);
  EXPECT_FALSE(data->added_tokens[0].normalized || data->added_tokens[0].rstrip);
  EXPECT_TRUE(data->ignore_merges);
  EXPECT_FALSE(data->byte_fallback);
}

TEST(TokenizerJson, Decoders) {
  EXPECT_EQ(ErrorOf(With("/decoder", "null")), "OK");
  EXPECT_EQ(Parse(With("/decoder", R"({"type":"ByteLevel"})").dump())->decoder.size(), 1u);
  const auto llama = Parse(With("/decoder", R"({"type":"Sequence","decoders":[
    {"type":"Replace","pattern":{"String":"\u2581"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},
    {"type":"Strip","content":" ","start":1,"stop":0}]})")
                               .dump());
  ASSERT_TRUE(llama.ok()) << llama.status();
  ASSERT_EQ(llama->decoder.size(), 4u);
  EXPECT_EQ(llama->decoder[0].pattern, "\u2581");
  EXPECT_EQ(llama->decoder[0].content, " ");
  EXPECT_EQ(llama->decoder[1].kind, DecoderStep::Kind::kByteFallback);
  EXPECT_EQ(llama->decoder[2].kind, DecoderStep::Kind::kFuse);
  EXPECT_EQ(llama->decoder[3].content, " ");
  EXPECT_EQ(llama->decoder[3].count, 1);
  const auto metaspace = Parse(With("/decoder", R"({"type":"Metaspace","prepend_scheme":"never"})").dump());
  ASSERT_TRUE(metaspace.ok()) << metaspace.status();
  EXPECT_EQ(metaspace->decoder[0].pattern, "\u2581");
  EXPECT_EQ(metaspace->decoder[0].count, 0);
  for (const auto& [bad, error] : std::vector<std::pair<const char*, const char*>>{
           {R"({"type":"WordPiece","prefix":"##"})",
            "UNIMPLEMENTED: tokenizer.json: decoder.type: WordPiece"},
           {R"({"type":"Replace","pattern":{"Regex":"a+"}})",
            "UNIMPLEMENTED: tokenizer.json: decoder.pattern: Regex"},
           {R"({"type":"Strip","content":" ","start":0,"stop":1})",
            "UNIMPLEMENTED: tokenizer.json: decoder.stop"},
           {R"({"type":"Sequence","decoders":7})", "INVALID_ARGUMENT"},
           {R"({"type":"Strip","content":" ","start":-1})",
            "INVALID_ARGUMENT: tokenizer.json: decoder.start"},
           {R"({"type":"Metaspace","prepend_scheme":"sometimes"})",
            "UNIMPLEMENTED: tokenizer.json: decoder.prepend_scheme: sometimes"}}) {
    EXPECT_THAT(ErrorOf(With("/decoder", bad)), HasSubstr(error)) << bad;
  }
}

TEST(TokenizerJson, MergesInBothSpellings) {
  const auto data = Parse(With("/model/merges", R"([["a","b"],["a b","c"],"\u0120 t"])").dump());
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->merges, ElementsAre(std::make_pair("a", "b"), std::make_pair("a b", "c"),
                                        std::make_pair("\xC4\xA0", "t")));
  for (const char* bad : {R"(["ab"])", R"(["a "])", R"([""])", R"([["a"]])", R"([["a","b","c"]])",
                          R"([["a",""]])", R"([1])", R"([["a",2]])", R"({"a":"b"})"}) {
    EXPECT_THAT(ErrorOf(With("/model/merges", bad)),
                HasSubstr("INVALID_ARGUMENT: tokenizer.json: model.merges: "))
        << bad;
  }
}

TEST(TokenizerJson, Vocabulary) {
  const auto data = Parse(With("/model/vocab", R"({"x":5,"":1,"y":0})").dump());
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->tokens, ElementsAre("y", "", "", "", "", "x"));
  for (const char* bad :
       {R"({"x":-1})", R"({"x":2000000000})", R"({"x":1.5})", R"({"x":"1"})", R"({"x":0,"y":0})"}) {
    EXPECT_THAT(ErrorOf(With("/model/vocab", bad)),
                HasSubstr("INVALID_ARGUMENT: tokenizer.json: model.vocab: "))
        << bad;
  }
  // A large file is no licence for large ids either.
  const json padded = {{std::string(2 * kMaxVocabSize, 'x'), kMaxVocabSize}};
  EXPECT_THAT(ErrorOf(With("/model/vocab", padded.dump().c_str())),
              HasSubstr(absl::StrCat("token id ", kMaxVocabSize, " is out of range")));
}

TEST(TokenizerJson, OtherModelsAreUnimplemented) {
  EXPECT_EQ(ErrorOf(With("/model", R"({"vocab":[["a",-1.5]],"unk_id":0,"type":"Unigram"})")),
            "UNIMPLEMENTED: tokenizer.json: model.type: a tokenizer of kind Unigram is not supported");
  EXPECT_THAT(ErrorOf(With("/model", R"({"type":"WordPiece","vocab":{"a":0}})")), HasSubstr("UNIMPLEMENTED"));
  EXPECT_THAT(ErrorOf(With("/model/end_of_word_suffix", "\"</w>\"")),
              HasSubstr("UNIMPLEMENTED: tokenizer.json: model.end_of_word_suffix"));
  EXPECT_THAT(ErrorOf(With("/model/dropout", "0.1")), HasSubstr("model.dropout"));
  EXPECT_EQ(ErrorOf(With("/model/dropout", "null")), "OK");
  EXPECT_EQ(ErrorOf(With("/model/end_of_word_suffix", "\"\"")), "OK");
}

TEST(TokenizerJson, PreTokenizers) {
  const auto data = Parse(With("/pre_tokenizer", R"({"type":"Sequence","pretokenizers":[
    {"type":"Split","pattern":{"Regex":"\\d+"},"behavior":"Removed","invert":true},
    {"type":"Split","pattern":{"String":" "},"behavior":"MergedWithNext","invert":false},
    {"type":"Digits","individual_digits":true},{"type":"WhitespaceSplit"},{"type":"Punctuation"},
    {"type":"Whitespace"},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})")
                              .dump());
  ASSERT_TRUE(data.ok()) << data.status();
  const auto& steps = data->pre_tokenizer;
  ASSERT_EQ(steps.size(), 7u);
  EXPECT_EQ(steps[0].pattern, "\\d+");
  EXPECT_TRUE(steps[0].invert && steps[0].pattern_is_regex);
  EXPECT_EQ(steps[0].behavior, "Removed");
  EXPECT_FALSE(steps[1].pattern_is_regex);
  EXPECT_TRUE(steps[2].kind == Kind::kDigits && steps[2].individual_digits);
  EXPECT_EQ(steps[3].kind, Kind::kWhitespaceSplit);
  EXPECT_EQ(steps[4].kind, Kind::kPunctuation);
  EXPECT_EQ(steps[5].kind, Kind::kSplit);
  EXPECT_TRUE(steps[6].kind == Kind::kByteLevel && !steps[6].use_regex && !steps[6].add_prefix_space);
  EXPECT_THAT(ErrorOf(With("/pre_tokenizer", R"({"type":"UnicodeScripts"})")),
              HasSubstr("UNIMPLEMENTED: tokenizer.json: pre_tokenizer.type: UnicodeScripts"));
  EXPECT_THAT(
      ErrorOf(With("/pre_tokenizer", R"({"type":"Split","pattern":{"Regex":"x"},"behavior":"Eaten"})")),
      HasSubstr("behavior"));
  EXPECT_THAT(ErrorOf(With("/pre_tokenizer", R"({"type":"Split","behavior":"Isolated"})")),
              HasSubstr("pattern"));
  EXPECT_THAT(ErrorOf(With("/pre_tokenizer", R"({"type":"Sequence"})")),
              HasSubstr("pre_tokenizer.pretokenizers: not a list"));
  EXPECT_THAT(ErrorOf(With("/pre_tokenizer", "[]")),
              HasSubstr("INVALID_ARGUMENT: tokenizer.json: pre_tokenizer: not an object"));
}

TEST(TokenizerJson, Metaspace) {
  using Prepend = PreTokenizerStep::Prepend;
  for (const auto& [text, prepend, split] : std::vector<std::tuple<const char*, Prepend, bool>>{
           {R"({"type":"Metaspace"})", Prepend::kAlways, true},
           {R"({"type":"Metaspace","add_prefix_space":false})", Prepend::kNever, true},
           {R"({"type":"Metaspace","prepend_scheme":"first","split":false})", Prepend::kFirst, false},
           {R"({"type":"Metaspace","prepend_scheme":"never"})", Prepend::kNever, true}}) {
    const auto data = Parse(With("/pre_tokenizer", text).dump());
    ASSERT_TRUE(data.ok()) << data.status();
    ASSERT_EQ(data->pre_tokenizer.size(), 1u);
    EXPECT_EQ(data->pre_tokenizer[0].kind, Kind::kMetaspace);
    EXPECT_EQ(data->pre_tokenizer[0].pattern, "\u2581");
    EXPECT_TRUE(data->pre_tokenizer[0].prepend == prepend && data->pre_tokenizer[0].split == split) << text;
  }
  EXPECT_THAT(ErrorOf(With("/pre_tokenizer", R"({"type":"Metaspace","replacement":""})")),
              HasSubstr("INVALID_ARGUMENT: tokenizer.json: pre_tokenizer.replacement"));
}

TEST(TokenizerJson, Normalizers) {
  using Step = NormalizerStep::Kind;
  EXPECT_EQ(Parse(With("/normalizer", R"({"type":"NFC"})").dump())->normalizer[0].kind, Step::kNfc);
  const auto many = Parse(With("/normalizer", R"({"type":"Sequence","normalizers":[
    {"type":"Lowercase"},{"type":"NFKC"},{"type":"Prepend","prepend":"\u2581"},{"type":"Strip","strip_left":false},
    {"type":"Replace","pattern":{"String":" "},"content":"\u2581"},
    {"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}]})")
                              .dump());
  ASSERT_TRUE(many.ok()) << many.status();
  const auto& steps = many->normalizer;
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_TRUE(steps[0].kind == Step::kLowercase && steps[1].kind == Step::kNfkc);
  EXPECT_TRUE(steps[2].kind == Step::kPrepend && steps[2].content == "\u2581");
  EXPECT_TRUE(steps[3].kind == Step::kStrip && !steps[3].left && steps[3].right);
  EXPECT_TRUE(steps[4].kind == Step::kReplace && steps[4].pattern == " " && !steps[4].pattern_is_regex);
  EXPECT_EQ(steps[4].content, "\u2581");
  EXPECT_TRUE(steps[5].pattern_is_regex);
  EXPECT_EQ(ErrorOf(With("/normalizer", R"({"type":"Sequence","normalizers":[]})")), "OK");
  EXPECT_THAT(ErrorOf(With("/normalizer", R"({"type":"Replace"})")),
              HasSubstr("INVALID_ARGUMENT: tokenizer.json: normalizer.pattern"));
  EXPECT_THAT(ErrorOf(With("/normalizer", R"({"type":"Nmt"})")),
              HasSubstr("UNIMPLEMENTED: tokenizer.json: normalizer.type: Nmt"));
  const json longest = {{"type", "Prepend"}, {"prepend", std::string(257, 'x')}};
  EXPECT_THAT(ErrorOf(With("/normalizer", longest.dump().c_str())),
              HasSubstr("normalizer.prepend: too long"));
}

TEST(TokenizerJson, PostProcessors) {
  const char* llama3 = R"({"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing",
    "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"<e>"}}],
    "pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[3],"tokens":["<s>"]},"<e>":{"ids":[4,5]}}}]})";
  const auto data = Parse(With("/post_processor", llama3).dump());
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->post_processor.prefix_ids, ElementsAre(3));
  EXPECT_THAT(data->post_processor.suffix_ids, ElementsAre(4, 5));
  const auto roberta = Parse(
      With("/post_processor", R"({"type":"RobertaProcessing","sep":["</s>",2],"cls":["<s>",0]})").dump());
  ASSERT_TRUE(roberta.ok()) << roberta.status();
  EXPECT_THAT(roberta->post_processor.prefix_ids, ElementsAre(0));
  for (const char* bad :
       {R"({"type":"TemplateProcessing"})", R"({"type":"TemplateProcessing","single":[]})",
        R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{}}]})",
        R"({"type":"TemplateProcessing","single":[{"Sequence":{}},{"Sequence":{}}]})",
        R"({"type":"BertProcessing","cls":["a",-1],"sep":["b",1]})"}) {
    EXPECT_THAT(ErrorOf(With("/post_processor", bad)),
                HasSubstr("INVALID_ARGUMENT: tokenizer.json: post_processor"))
        << bad;
  }
}

TEST(TokenizerJson, AddedTokens) {
  EXPECT_THAT(ErrorOf(With("/added_tokens", R"([{"id":1000000000,"content":"x"}])")),
              HasSubstr("id 1000000000 is far outside"));
  EXPECT_THAT(ErrorOf(With("/added_tokens", R"([{"content":"x"}])")), HasSubstr("added_tokens"));
  EXPECT_THAT(ErrorOf(With("/added_tokens", R"([{"id":1,"content":2}])")),
              HasSubstr("added_tokens.content: not a string"));
  EXPECT_THAT(ErrorOf(With("/added_tokens", R"({"a":1})")), HasSubstr("added_tokens: not a list"));
}

TEST(TokenizerJson, EveryTruncationIsAnError) {
  const std::string good = Minimal().dump();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(Parse(good.substr(0, size)).status().ToString(),
                HasSubstr("INVALID_ARGUMENT: tokenizer.json: "))
        << size;
  }
  EXPECT_THAT(Parse("{}").status().ToString(), HasSubstr("model is missing"));
  EXPECT_THAT(Parse("{\"model\":{}}").status().ToString(), HasSubstr("vocab or merges are missing"));
}

class TokenizerDirectory : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) { WriteFile(directory_ + "/" + name, text); }
  std::string directory_ = MakeTempDir();
};

TEST_F(TokenizerDirectory, ConfigBesideTheTokenizer) {
  Write("tokenizer.json", Minimal().dump());
  Write("tokenizer_config.json",
        R"({"bos_token":{"content":"<s>","lstrip":false},"eos_token":"b","pad_token":null,
    "chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}],"add_bos_token":true,
    "added_tokens_decoder":{"3":{"content":"<s>"},"4":{"content":"<x>","special":true}}})");
  Write("special_tokens_map.json", R"({"eos_token":"a","unk_token":{"content":"a"}})");
  auto data = ReadHfTokenizer(directory_);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->bos_token, "<s>");
  EXPECT_EQ(data->eos_token, "b");  // the map sets only kwargs that the config does not
  EXPECT_EQ(data->unk_token_text, "a");
  EXPECT_EQ(data->pad_token, "");
  EXPECT_EQ(data->chat_template, "D");
  EXPECT_TRUE(data->add_bos_token);
  // <s>, <x>, and the tokens that the configuration names as special ones.
  ASSERT_EQ(data->added_tokens.size(), 4u);
  EXPECT_EQ(data->added_tokens[1].content, "<x>");
  for (const int i : {2, 3}) {
    EXPECT_EQ(data->added_tokens[i].content, i == 2 ? "b" : "a");
    EXPECT_EQ(data->added_tokens[i].id, i == 2 ? 1 : 0);
    EXPECT_TRUE(data->added_tokens[i].special);
  }
  Write("chat_template.json", R"({"chat_template":"P"})");
  EXPECT_EQ(ReadHfTokenizer(directory_)->chat_template, "D");
  Write("chat_template.jinja", "J");
  data = ReadHfTokenizer(directory_);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->chat_template, "J");
}

TEST_F(TokenizerDirectory, DamagedConfig) {
  Write("tokenizer.json", Minimal().dump());
  for (const char* bad :
       {"{", "[]", R"({"bos_token":1})", R"({"chat_template":3})", R"({"chat_template":["x"]})",
        R"({"added_tokens_decoder":{"x":{}}})", R"({"added_tokens_decoder":{"999999999":{"content":"x"}}})",
        R"({"add_bos_token":"yes"})", R"({"additional_special_tokens":"x"})",
        R"({"additional_special_tokens":[1]})"}) {
    Write("tokenizer_config.json", bad);
    const std::string error = ReadHfTokenizer(directory_).status().ToString();
    EXPECT_THAT(error, HasSubstr("INVALID_ARGUMENT: tokenizer_config.json: ")) << bad;
  }
  Write("tokenizer_config.json", "{}");
  Write("chat_template.jinja", "\xFF");
  EXPECT_EQ(ReadHfTokenizer(directory_).status().ToString(),
            "INVALID_ARGUMENT: chat_template.jinja: not valid UTF-8");
}

TEST_F(TokenizerDirectory, VocabAndMerges) {
  Write("vocab.json", R"({"<s>":0,"a":1,"b":2,"ab":3,"</s>":4})");
  Write("merges.txt", "#version: 0.2\na b\r\n\n# a\n");
  Write("tokenizer_config.json",
        R"({"tokenizer_class":"GPT2Tokenizer","bos_token":"</s>","eos_token":"</s>","pad_token":"<s>",
            "add_bos_token":true})");
  const auto data = ReadHfTokenizer(directory_);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->tokens.size(), 5u);
  EXPECT_THAT(data->merges, ElementsAre(std::make_pair("a", "b"), std::make_pair("#", "a")));
  EXPECT_THAT(data->post_processor.prefix_ids, ElementsAre(4));
  ASSERT_EQ(data->added_tokens.size(), 2u);
  EXPECT_EQ(data->added_tokens[0].content, "</s>");
  ASSERT_EQ(data->pre_tokenizer.size(), 1u);
  EXPECT_TRUE(data->pre_tokenizer[0].use_regex);
  Write("tokenizer_config.json", "{}");
  EXPECT_THAT(ReadHfTokenizer(directory_).status().ToString(), HasSubstr("names no tokenizer_class"));
  Write("config.json", R"({"model_type":"qwen2"})");
  const auto qwen2 = ReadHfTokenizer(directory_);
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  ASSERT_EQ(qwen2->pre_tokenizer.size(), 2u);
  EXPECT_EQ(qwen2->pre_tokenizer[0].kind, Kind::kSplit);
  EXPECT_EQ(qwen2->normalizer.size(), 1u);
  Write("merges.txt", "#version: 0.2\na b\nab\n");
  EXPECT_EQ(ReadHfTokenizer(directory_).status().ToString(),
            "INVALID_ARGUMENT: merges.txt: line 3 is not two tokens with a space between them");
}

TEST_F(TokenizerDirectory, TheTemplateOfAProcessorIsTheLastToTake) {
  Write("tokenizer.json", Minimal().dump());
  Write("chat_template.json", R"({"chat_template":"P"})");
  EXPECT_EQ(ReadHfTokenizer(directory_)->chat_template, "P");
  Write("chat_template.json", "{");
  EXPECT_THAT(ReadHfTokenizer(directory_).status().ToString(),
              HasSubstr("INVALID_ARGUMENT: chat_template.json: "));
}

TEST_F(TokenizerDirectory, NoTokenizer) {
  EXPECT_TRUE(absl::IsNotFound(ReadHfTokenizer(directory_).status()));
  Write("tiktoken.model", "AA== 0\n");
  EXPECT_EQ(
      ReadHfTokenizer(directory_).status().ToString(),
      "UNIMPLEMENTED: tiktoken.model is not read: the directory needs a tokenizer.json of that vocabulary");
}

}  // namespace
}  // namespace somnus
