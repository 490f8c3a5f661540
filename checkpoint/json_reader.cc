#include "checkpoint/json_reader.h"

#include <charconv>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/utf8.h"

namespace somnus {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

absl::string_view WithoutByteOrderMark(absl::string_view text) {
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");
  return text;
}

bool JsonReader::Fail(absl::string_view reason) {
  if (error_.empty()) error_ = absl::StrCat(reason, " at byte ", pos_);
  return false;
}

void JsonReader::SkipSpace() {
  while (pos_ < text_.size() &&
         (text_[pos_] == ' ' || text_[pos_] == '\n' || text_[pos_] == '\t' || text_[pos_] == '\r')) {
    ++pos_;
  }
}

JsonReader::Kind JsonReader::Peek() {
  if (!ok()) return Kind::kInvalid;
  SkipSpace();
  if (pos_ >= text_.size()) return Kind::kInvalid;
  switch (text_[pos_]) {
    case '{':
      return Kind::kObject;
    case '[':
      return Kind::kArray;
    case '"':
      return Kind::kString;
    case 't':
    case 'f':
      return Kind::kBool;
    case 'n':
      return Kind::kNull;
    default:
      return text_[pos_] == '-' || IsDigit(text_[pos_]) ? Kind::kNumber : Kind::kInvalid;
  }
}

bool JsonReader::Expect(char c) {
  if (!ok()) return false;
  SkipSpace();
  if (pos_ >= text_.size()) return Fail("the text ends too early");
  if (text_[pos_] != c) return Fail(absl::StrCat("expected '", std::string(1, c), "'"));
  ++pos_;
  return true;
}

bool JsonReader::Begin(char open) {
  if (!Expect(open)) return false;
  if (++depth_ > kMaxDepth) return Fail("nested too deeply");
  fresh_ = true;
  return true;
}

bool JsonReader::NextItem(char close) {
  if (!ok()) return false;
  SkipSpace();
  if (pos_ < text_.size() && text_[pos_] == close) {
    ++pos_;
    --depth_;
    fresh_ = false;
    return false;
  }
  if (fresh_) {
    fresh_ = false;
    return true;
  }
  return Expect(',');
}

bool JsonReader::BeginObject() { return Begin('{'); }
bool JsonReader::BeginArray() { return Begin('['); }
bool JsonReader::NextElement() { return NextItem(']'); }
bool JsonReader::NextKey(std::string* key) { return NextItem('}') && ReadString(key) && Expect(':'); }

bool JsonReader::ReadHex4(uint32_t* value) {
  if (text_.size() - pos_ < 4) return Fail("the text ends too early");
  const char* begin = text_.data() + pos_;
  const auto result = std::from_chars(begin, begin + 4, *value, 16);
  if (result.ec != std::errc() || result.ptr != begin + 4) return Fail("bad \\u escape");
  pos_ += 4;
  return true;
}

bool JsonReader::ReadEscape(std::string* value) {
  if (pos_ >= text_.size()) return Fail("the text ends too early");
  switch (const char c = text_[pos_++]) {
    case '"':
    case '\\':
    case '/':
      value->push_back(c);
      return true;
    case 'b':
      value->push_back('\b');
      return true;
    case 'f':
      value->push_back('\f');
      return true;
    case 'n':
      value->push_back('\n');
      return true;
    case 'r':
      value->push_back('\r');
      return true;
    case 't':
      value->push_back('\t');
      return true;
    case 'u':
      break;
    default:
      return Fail("bad escape");
  }
  uint32_t code = 0, low = 0;
  if (!ReadHex4(&code)) return false;
  if (code >= 0xD800 && code <= 0xDFFF) {
    if (code > 0xDBFF || text_.substr(pos_, 2) != "\\u") return Fail("lone surrogate");
    pos_ += 2;
    if (!ReadHex4(&low)) return false;
    if (low < 0xDC00 || low > 0xDFFF) return Fail("lone surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  AppendUtf8(code, value);
  return true;
}

bool JsonReader::ReadString(std::string* value) {
  if (!Expect('"')) return false;
  value->clear();
  while (true) {
    const size_t begin = pos_;
    bool ascii = true;
    while (pos_ < text_.size() && text_[pos_] != '"' && text_[pos_] != '\\') {
      const auto c = static_cast<unsigned char>(text_[pos_]);
      if (c < 0x20) return Fail("control character in a string");
      ascii = ascii && c < 0x80;
      ++pos_;
    }
    if (pos_ >= text_.size()) return Fail("the text ends too early");
    const absl::string_view piece = text_.substr(begin, pos_ - begin);
    if (!ascii && !IsUtf8(piece)) return Fail("a string is not valid UTF-8");
    value->append(piece.data(), piece.size());
    if (text_[pos_++] == '"') return true;
    if (!ReadEscape(value)) return false;
  }
}

bool JsonReader::SkipNumber() {
  auto digits = [this] {
    const size_t begin = pos_;
    while (pos_ < text_.size() && IsDigit(text_[pos_])) ++pos_;
    return pos_ - begin;
  };
  if (pos_ < text_.size() && text_[pos_] == '-') ++pos_;
  const bool zero = pos_ < text_.size() && text_[pos_] == '0';
  const size_t whole = digits();
  if (whole == 0 || (zero && whole > 1)) return Fail("bad number");
  if (pos_ < text_.size() && text_[pos_] == '.') {
    ++pos_;
    if (digits() == 0) return Fail("bad number");
  }
  if (pos_ < text_.size() && (text_[pos_] == 'e' || text_[pos_] == 'E')) {
    ++pos_;
    if (pos_ < text_.size() && (text_[pos_] == '+' || text_[pos_] == '-')) ++pos_;
    if (digits() == 0) return Fail("bad number");
  }
  return true;
}

bool JsonReader::ReadInt(int64_t* value) {
  if (Peek() != Kind::kNumber) return Fail("expected an integer");
  const size_t begin = pos_;
  if (!SkipNumber()) return false;
  const auto result = std::from_chars(text_.data() + begin, text_.data() + pos_, *value);
  if (result.ec == std::errc() && result.ptr == text_.data() + pos_) return true;
  return Fail("expected an integer of 64 bits");
}

bool JsonReader::SkipScalar() {
  switch (Peek()) {
    case Kind::kString:
      return ReadString(&scratch_);
    case Kind::kNumber:
      return SkipNumber();
    case Kind::kBool:
    case Kind::kNull:
      break;
    default:
      return Fail(pos_ >= text_.size() ? "the text ends too early" : "expected a value");
  }
  for (absl::string_view word : {"true", "false", "null"}) {
    if (text_.substr(pos_, word.size()) == word) {
      pos_ += word.size();
      return true;
    }
  }
  return Fail("expected a value");
}

bool JsonReader::Skip(absl::string_view* raw) {
  const Kind kind = Peek();
  const size_t begin = pos_;
  if (kind == Kind::kObject) {
    if (!BeginObject()) return false;
    while (NextKey(&scratch_)) {
      if (!Skip()) return false;
    }
  } else if (kind == Kind::kArray) {
    if (!BeginArray()) return false;
    while (NextElement()) {
      if (!Skip()) return false;
    }
  } else {
    SkipScalar();
  }
  if (ok() && raw != nullptr) *raw = text_.substr(begin, pos_ - begin);
  return ok();
}

bool JsonReader::AtEnd() {
  SkipSpace();
  return ok() && pos_ == text_.size();
}

}  // namespace somnus
