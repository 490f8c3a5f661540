#include "text/jinja/format.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/jinja/text.h"

namespace somnus::jinja {
namespace {

absl::Status CheckLength(const std::string& out) {
  if (static_cast<int64_t>(out.size()) <= kMaxTextBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError("a text is too long");
}

bool IsPrintable(char32_t code) {
  if (code == ' ') return true;
  constexpr uint32_t kHidden = U_GC_C_MASK | U_GC_Z_MASK;
  return (U_GET_GC_MASK(static_cast<UChar32>(code)) & kHidden) == 0;
}

void AppendStringRepr(absl::string_view s, std::string* out) {
  const bool double_quotes =
      s.find('\'') != absl::string_view::npos && s.find('"') == absl::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  *out += quote;
  for (size_t pos = 0; pos < s.size();) {
    const Utf8Step step = DecodeUtf8(s, pos);
    const auto code = static_cast<uint32_t>(step.code);
    if (code == '\n') {
      *out += "\\n";
    } else if (code == '\r') {
      *out += "\\r";
    } else if (code == '\t') {
      *out += "\\t";
    } else if (code == '\\' || code == static_cast<uint32_t>(quote)) {
      *out += '\\';
      *out += static_cast<char>(code);
    } else if (!IsPrintable(step.code)) {
      absl::StrAppend(out, code < 0x100     ? absl::StrFormat("\\x%02x", code)
                           : code < 0x10000 ? absl::StrFormat("\\u%04x", code)
                                            : absl::StrFormat("\\U%08x", code));
    } else {
      absl::StrAppend(out, s.substr(pos, step.length));
    }
    pos += step.length;
  }
  *out += quote;
}

absl::Status AppendRepr(const Value& value, std::string* out);

absl::Status AppendListRepr(const List& list, std::string* out) {
  *out += list.tuple ? '(' : '[';
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) *out += ", ";
    RETURN_IF_ERROR(AppendRepr(list.items[i], out));
  }
  if (list.tuple && list.items.size() == 1) *out += ',';
  *out += list.tuple ? ')' : ']';
  return absl::OkStatus();
}

absl::Status AppendRepr(const Value& value, std::string* out) {
  RETURN_IF_ERROR(CheckLength(*out));
  if (value.is_string()) {
    AppendStringRepr(value.str(), out);
  } else if (value.is_undefined()) {
    *out += "Undefined";
  } else if (value.is_none()) {
    *out += "None";
  } else if (value.is_bool()) {
    *out += value.integer() != 0 ? "True" : "False";
  } else if (value.is_int()) {
    absl::StrAppend(out, value.integer());
  } else if (value.is_float()) {
    *out += FloatRepr(value.number());
  } else if (value.is_list()) {
    return AppendListRepr(value.list(), out);
  } else if (value.is_dict()) {
    *out += '{';
    bool first = true;
    for (const auto& [key, item] : value.dict().items()) {
      if (!first) *out += ", ";
      first = false;
      RETURN_IF_ERROR(AppendRepr(key, out));
      *out += ": ";
      RETURN_IF_ERROR(AppendRepr(item, out));
    }
    *out += '}';
  } else {
    absl::StrAppend(out, "<", value.TypeName(), ">");
  }
  return absl::OkStatus();
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonOptions& options) : options_(options) {}

  absl::StatusOr<std::string> Run(const Value& value) {
    RETURN_IF_ERROR(Write(value, 0));
    return std::move(out_);
  }

 private:
  absl::Status Write(const Value& value, int level) {
    RETURN_IF_ERROR(CheckLength(out_));
    if (value.is_string()) {
      WriteString(value.str());
    } else if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.integer() != 0 ? "true" : "false";
    } else if (value.is_int()) {
      absl::StrAppend(&out_, value.integer());
    } else if (value.is_float()) {
      WriteFloat(value.number());
    } else if (value.is_list()) {
      return WriteList(value.list(), level);
    } else if (value.is_dict()) {
      return WriteDict(value.dict(), level);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("an object of type ", value.TypeName(), " is not JSON serializable"));
    }
    return absl::OkStatus();
  }

  void WriteFloat(double number) {
    if (std::isfinite(number)) {
      out_ += FloatRepr(number);
    } else {
      out_ += std::isnan(number) ? "NaN" : number < 0 ? "-Infinity" : "Infinity";
    }
  }

  void NewLine(int level) {
    if (!options_.indented) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += options_.indent;
  }

  absl::Status WriteList(const List& list, int level) {
    if (list.items.empty()) return out_ += "[]", absl::OkStatus();
    out_ += '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += options_.item_separator;
      NewLine(level + 1);
      RETURN_IF_ERROR(Write(list.items[i], level + 1));
    }
    NewLine(level);
    out_ += ']';
    return absl::OkStatus();
  }

  absl::Status WriteDict(const Dict& dict, int level) {
    if (dict.items().empty()) return out_ += "{}", absl::OkStatus();
    std::vector<std::pair<std::string, const Value*>> items;
    for (const auto& [key, item] : dict.items()) {
      ASSIGN_OR_RETURN(std::string text, KeyText(key));
      items.emplace_back(std::move(text), &item);
    }
    if (options_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    out_ += '{';
    bool first = true;
    for (const auto& [key, item] : items) {
      if (!first) out_ += options_.item_separator;
      first = false;
      NewLine(level + 1);
      WriteString(key);
      out_ += options_.key_separator;
      RETURN_IF_ERROR(Write(*item, level + 1));
    }
    NewLine(level);
    out_ += '}';
    return absl::OkStatus();
  }

  static absl::StatusOr<std::string> KeyText(const Value& key) {
    if (key.is_string()) return key.str();
    if (key.is_none()) return std::string("null");
    if (key.is_bool()) return std::string(key.integer() != 0 ? "true" : "false");
    if (key.is_number()) return ToStr(key);
    return absl::InvalidArgumentError("a key of this type is not JSON serializable");
  }

  void WriteString(absl::string_view s) {
    static constexpr absl::string_view kPlain = "\"\\\n\r\t\b\f", kEscape = "\"\\nrtbf";
    out_ += '"';
    for (size_t pos = 0; pos < s.size();) {
      const Utf8Step step = DecodeUtf8(s, pos);
      const auto code = static_cast<uint32_t>(step.code);
      const size_t special = code < 0x80 ? kPlain.find(static_cast<char>(code)) : absl::string_view::npos;
      if (special != absl::string_view::npos) {
        out_ += '\\';
        out_ += kEscape[special];
      } else if (code < 0x20 || (options_.ensure_ascii && code >= 0x7F && code < 0x10000 && code != 0x7F)) {
        absl::StrAppendFormat(&out_, "\\u%04x", code);
      } else if (options_.ensure_ascii && code >= 0x10000) {
        absl::StrAppendFormat(&out_, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                              0xDC00 + ((code - 0x10000) & 0x3FF));
      } else {
        absl::StrAppend(&out_, s.substr(pos, step.length));
      }
      pos += step.length;
    }
    out_ += '"';
  }

  const JsonOptions& options_;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> ToStr(const Value& value) {
  if (value.is_string()) return value.str();
  if (value.is_undefined()) return std::string();
  return ToRepr(value);
}

absl::StatusOr<std::string> ToRepr(const Value& value) {
  std::string out;
  RETURN_IF_ERROR(AppendRepr(value, &out));
  RETURN_IF_ERROR(CheckLength(out));
  return out;
}

absl::StatusOr<std::string> ToJson(const Value& value, const JsonOptions& options) {
  return JsonWriter(options).Run(value);
}

}  // namespace somnus::jinja
