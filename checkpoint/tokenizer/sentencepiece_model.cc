#include "checkpoint/tokenizer/sentencepiece_model.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "checkpoint/model_config.h"

namespace somnus {
namespace {

// Reads the fields of a protobuf message, in order.
class MessageReader {
 public:
  explicit MessageReader(absl::string_view bytes) : rest_(bytes) {}

  // False at the end and after an error.
  bool Next() {
    if (rest_.empty() || !ok_) return false;
    uint64_t tag = 0;
    if (!ReadVarint(&tag)) return false;
    field_ = tag >> 3;
    switch (tag & 7) {
      case 0:
        return ReadVarint(&number_);
      case 1:
        return Take(8);
      case 2: {
        uint64_t size = 0;
        return ReadVarint(&size) && Take(size);
      }
      case 5:
        return Take(4);
      default:
        return ok_ = false;
    }
  }

  bool ok() const { return ok_; }
  uint64_t field() const { return field_; }
  // The value of the field, by the field's kind; the accessors of the other kinds return 0 or nothing.
  uint64_t number() const { return number_; }
  absl::string_view bytes() const { return bytes_; }
  float number32() const {
    float value = 0;
    if (bytes_.size() == sizeof(value)) std::memcpy(&value, bytes_.data(), sizeof(value));
    return value;
  }

 private:
  bool ReadVarint(uint64_t* value) {
    *value = 0;
    bytes_ = {};
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return ok_ = false;
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return ok_ = false;
  }

  bool Take(uint64_t size) {
    number_ = 0;
    if (size > rest_.size()) return ok_ = false;
    bytes_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  absl::string_view rest_, bytes_;
  uint64_t field_ = 0, number_ = 0;
  bool ok_ = true;
};

// Reads a message SentencePiece {piece = 1, score = 2, type = 3}. Returns the defect; empty: no defect.
std::string ReadPiece(absl::string_view message, SentencePieces* out) {
  std::string piece;
  float score = 0;
  uint64_t type = 1;
  MessageReader reader(message);
  while (reader.Next()) {
    if (reader.field() == 1) piece = std::string(reader.bytes());
    if (reader.field() == 2) score = reader.number32();
    if (reader.field() == 3) type = reader.number();
  }
  const size_t id = out->pieces.size();
  if (!reader.ok()) return absl::StrCat("piece ", id, " is damaged");
  if (!IsUtf8(piece)) return absl::StrCat("piece ", id, " is not valid UTF-8");
  if (type < 1 || type > 6) return absl::StrCat("piece ", id, " has the unknown type ", type);
  if (std::isnan(score)) return absl::StrCat("piece ", id, " has no number for a score");
  if (id >= kMaxVocabSize) return "too many pieces";
  out->pieces.push_back(std::move(piece));
  out->scores.push_back(score);
  out->types.push_back(static_cast<PieceType>(type));
  return "";
}

bool ReadTrainer(absl::string_view message, SentencePieceModel* model) {
  MessageReader reader(message);
  while (reader.Next()) {
    if (reader.field() == 3) model->algorithm = static_cast<SentencePieceModel::Algorithm>(reader.number());
    if (reader.field() == 24) model->space_is_suffix = reader.number() != 0;
    if (reader.field() == 35) model->byte_fallback = reader.number() != 0;
  }
  return reader.ok();
}

bool ReadNormalizer(absl::string_view message, SentencePieceModel* model) {
  MessageReader reader(message);
  while (reader.Next()) {
    if (reader.field() == 2) model->normalizes_characters = !reader.bytes().empty();
    if (reader.field() == 3) model->add_dummy_prefix = reader.number() != 0;
    if (reader.field() == 4) model->remove_extra_spaces = reader.number() != 0;
    if (reader.field() == 5) model->escape_spaces = reader.number() != 0;
  }
  return reader.ok();
}

}  // namespace

absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(const std::string& file, absl::string_view bytes) {
  SentencePieceModel model;
  MessageReader reader(bytes);
  std::string error;
  while (error.empty() && reader.Next()) {
    if (reader.field() == 1) error = ReadPiece(reader.bytes(), &model.vocabulary);
    if (reader.field() == 2 && !ReadTrainer(reader.bytes(), &model)) error = "trainer_spec is damaged";
    if (reader.field() == 3 && !ReadNormalizer(reader.bytes(), &model)) error = "normalizer_spec is damaged";
  }
  if (error.empty() && !reader.ok()) error = "not a SentencePiece model, or damaged";
  if (error.empty() && model.vocabulary.pieces.empty()) error = "no pieces";
  if (!error.empty()) return absl::InvalidArgumentError(absl::StrCat(file, ": ", error));
  return model;
}

}  // namespace somnus
