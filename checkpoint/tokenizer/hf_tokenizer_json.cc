// tokenizer.json, vocab.json and merges.txt. The vocabulary and the merges make up nearly all of a file of up
// to tens of megabytes and are read by the pull parser; the rest is small and goes through the DOM.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tokenizer/hf_tokenizer.h"
#include "checkpoint/tokenizer/hf_tokenizer_steps.h"

namespace somnus {
namespace {

// The model's fields beside vocabulary and merges.
struct ModelFields {
  std::string type;
  bool has_vocab = false, has_merges = false;
  std::string unsupported;  // the first option that is set and not supported
};

// {"token": id, ...}. An id as large as the file has bytes, or as no vocabulary has, is damage, not a reason
// to allocate.
bool ReadVocab(JsonReader* reader, size_t file_bytes, std::vector<std::string>* tokens) {
  const auto end = static_cast<int64_t>(std::min<size_t>(file_bytes, kMaxVocabSize));
  std::string token;
  int64_t id = 0;
  if (!reader->BeginObject()) return false;
  while (reader->NextKey(&token)) {
    if (!reader->ReadInt(&id)) return false;
    if (id < 0 || id >= end) return reader->Fail(absl::StrCat("token id ", id, " is out of range"));
    if (tokens->size() <= static_cast<size_t>(id)) tokens->resize(id + 1);
    if (!(*tokens)[id].empty()) return reader->Fail(absl::StrCat("token id ", id, " twice"));
    (*tokens)[id] = token;
  }
  return reader->ok();
}

// Cuts "left right" at its only space.
bool SplitMerge(absl::string_view text, std::pair<std::string, std::string>* merge) {
  const size_t space = text.find(' ', 1);
  if (text.empty() || space == absl::string_view::npos || space + 1 == text.size()) return false;
  merge->first.assign(text.data(), space);
  merge->second.assign(text.data() + space + 1, text.size() - space - 1);
  return true;
}

// ["a b", ...] or [["a", "b"], ...].
bool ReadMerges(JsonReader* reader, std::vector<std::pair<std::string, std::string>>* merges) {
  std::string text;
  if (!reader->BeginArray()) return false;
  while (reader->NextElement()) {
    auto& merge = merges->emplace_back();
    if (reader->Peek() == JsonReader::Kind::kString) {
      if (!reader->ReadString(&text)) return false;
      if (!SplitMerge(text, &merge))
        return reader->Fail("a merge is not two tokens with a space between them");
      continue;
    }
    if (!reader->BeginArray()) return false;
    for (std::string* side : {&merge.first, &merge.second}) {
      if (!reader->NextElement() || !reader->ReadString(side) || side->empty()) {
        return reader->Fail("a merge is not two tokens");
      }
    }
    if (reader->NextElement()) return reader->Fail("a merge is not two tokens");
  }
  return reader->ok();
}

// A boolean or null.
bool ReadFlag(JsonReader* reader, bool* flag) {
  absl::string_view raw;
  if (!reader->Skip(&raw)) return false;
  *flag = raw == "true";
  return raw == "true" || raw == "false" || raw == "null" || reader->Fail("expected true or false");
}

// A string or null.
bool ReadOptionalString(JsonReader* reader, std::string* text) {
  return reader->Peek() == JsonReader::Kind::kNull ? reader->Skip() : reader->ReadString(text);
}

bool ReadModelKey(JsonReader* reader, const std::string& key, size_t file_bytes, ModelFields* model,
                  TokenizerData* data) {
  if (key == "type") return reader->ReadString(&model->type);
  if (key == "unk_token") return ReadOptionalString(reader, &data->unk_token);
  if (key == "ignore_merges") return ReadFlag(reader, &data->ignore_merges);
  if (key == "byte_fallback") return ReadFlag(reader, &data->byte_fallback);
  if (key == "fuse_unk") return ReadFlag(reader, &data->fuse_unk);
  if (key == "continuing_subword_prefix" || key == "end_of_word_suffix") {
    std::string text;
    if (!ReadOptionalString(reader, &text)) return false;
    if (!text.empty() && model->unsupported.empty()) model->unsupported = key;
    return true;
  }
  if (key == "dropout") {
    absl::string_view raw;
    if (!reader->Skip(&raw)) return false;
    if (raw != "null" && raw != "0" && raw != "0.0" && model->unsupported.empty()) model->unsupported = key;
    return true;
  }
  // Unigram's vocabulary is a list; whether that is an error depends on `type`, which may come later.
  if (key == "vocab" && reader->Peek() == JsonReader::Kind::kObject && !model->has_vocab) {
    model->has_vocab = true;
    return ReadVocab(reader, file_bytes, &data->tokens);
  }
  if (key == "merges" && !model->has_merges) {
    model->has_merges = true;
    return ReadMerges(reader, &data->merges);
  }
  return reader->Skip();
}

absl::Status ReadModel(const std::string& file, JsonReader* reader, size_t file_bytes, TokenizerData* data) {
  ModelFields model;
  std::string key;
  reader->BeginObject();
  while (reader->NextKey(&key) && ReadModelKey(reader, key, file_bytes, &model, data)) {
  }
  // Files from before 2021 have no type; only BPE has merges.
  if (model.type.empty() && model.has_merges) model.type = "BPE";
  if (!model.type.empty() && model.type != "BPE") {
    return absl::UnimplementedError(
        absl::StrCat(file, ": model.type: a tokenizer of kind ", model.type, " is not supported"));
  }
  if (!reader->ok())
    return absl::InvalidArgumentError(absl::StrCat(file, ": model.", key, ": ", reader->error()));
  if (!model.has_vocab || !model.has_merges) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": model: vocab or merges are missing"));
  }
  if (model.unsupported.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(file, ": model.", model.unsupported, ": is not supported"));
}

}  // namespace

absl::Status ParseTokenizerJson(const std::string& file, absl::string_view text, TokenizerData* data) {
  JsonReader reader(WithoutByteOrderMark(text));
  std::string key;
  absl::string_view added, normalizer, pre_tokenizer, post_processor, decoder;
  bool has_model = false;
  reader.BeginObject();
  while (reader.NextKey(&key)) {
    if (key == "model") {
      if (std::exchange(has_model, true))
        return absl::InvalidArgumentError(absl::StrCat(file, ": model twice"));
      RETURN_IF_ERROR(ReadModel(file, &reader, text.size(), data));
      continue;
    }
    absl::string_view raw;
    if (!reader.Skip(&raw)) break;
    if (key == "added_tokens") added = raw;
    if (key == "normalizer") normalizer = raw;
    if (key == "pre_tokenizer") pre_tokenizer = raw;
    if (key == "post_processor") post_processor = raw;
    if (key == "decoder") decoder = raw;
  }
  if (reader.ok() && !reader.AtEnd()) reader.Fail("something follows the object");
  if (!reader.ok())
    return absl::InvalidArgumentError(absl::StrCat(file, ": not valid JSON: ", reader.error()));
  if (!has_model) return absl::InvalidArgumentError(absl::StrCat(file, ": model is missing"));
  if (!added.empty()) RETURN_IF_ERROR(ParseAddedTokens(file, added, data));
  if (!normalizer.empty()) RETURN_IF_ERROR(ParseNormalizer(file, normalizer, data));
  if (!pre_tokenizer.empty()) RETURN_IF_ERROR(ParsePreTokenizer(file, pre_tokenizer, data));
  if (!decoder.empty()) RETURN_IF_ERROR(ParseDecoder(file, decoder, data));
  return post_processor.empty() ? absl::OkStatus() : ParsePostProcessor(file, post_processor, data);
}

absl::Status ParseVocabJson(const std::string& file, absl::string_view text, TokenizerData* data) {
  JsonReader reader(WithoutByteOrderMark(text));
  if (ReadVocab(&reader, text.size(), &data->tokens) && !reader.AtEnd())
    reader.Fail("something follows the object");
  if (reader.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", reader.error()));
}

absl::Status ParseMergesText(const std::string& file, absl::string_view text, TokenizerData* data) {
  if (!IsUtf8(text)) return absl::InvalidArgumentError(absl::StrCat(file, ": not valid UTF-8"));
  for (int line_number = 1; !text.empty(); ++line_number) {
    const size_t end = std::min(text.find('\n'), text.size());
    absl::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.compare(0, 8, "#version") == 0)) continue;
    if (!SplitMerge(line, &data->merges.emplace_back())) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": line ", line_number, " is not two tokens with a space between them"));
    }
  }
  return absl::OkStatus();
}

}  // namespace somnus
