#include "coordinator/http/json_body.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace somnus {
namespace {

constexpr absl::string_view kNotFinite[] = {"-Infinity", "Infinity", "NaN"};

// Stops at the outermost object's "model".
class ModelNameFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string name;
  bool failed = false;

  bool key(std::string& key) override {
    wanted_ = depth_ == 1 && key == "model";
    return true;
  }
  bool string(std::string& value) override {
    if (wanted_) name = value;
    return !wanted_;
  }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool null() override { return !wanted_; }
  bool boolean(bool) override { return !wanted_; }
  bool number_integer(number_integer_t) override { return !wanted_; }
  bool number_unsigned(number_unsigned_t) override { return !wanted_; }
  bool number_float(number_float_t, const std::string&) override { return !wanted_; }
  bool binary(nlohmann::json::binary_t&) override { return !wanted_; }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    failed = true;
    return false;
  }

 private:
  bool Open() {
    ++depth_;
    return !wanted_;
  }
  bool Close() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  bool wanted_ = false;  // the next value is the name
};

// Reads the tokens once, without recursion, and copies the tokens to out_ with non-finite numbers quoted.
class Scanner {
 public:
  Scanner(absl::string_view body, const JsonLimits& limits) : body_(body), limits_(limits) {
    out_.reserve(body.size());
  }

  absl::StatusOr<std::string> Run() {
    while (pos_ < body_.size()) {
      const char c = body_[pos_];
      if (c == '"') {
        CopyString();
      } else if (c == '-' || c == 'N' || c == 'I' || absl::ascii_isdigit(c)) {
        CopyNumber();
      } else {
        if (c == '[' || c == '{') {
          if (++depth_ > limits_.max_depth) {
            return absl::InvalidArgumentError(absl::StrCat("JSON is nested deeper than ", limits_.max_depth));
          }
          ++values_;
        } else if (c == ']' || c == '}') {
          --depth_;
        } else if (c == ',') {
          ++values_;
        }
        out_ += c;
        ++pos_;
      }
      if (values_ > limits_.max_values) {
        return absl::InvalidArgumentError(absl::StrCat("JSON has more than ", limits_.max_values, " values"));
      }
    }
    return std::move(out_);
  }

 private:
  void CopyString() {
    size_t end = pos_ + 1;
    while (end < body_.size() && body_[end] != '"') end += body_[end] == '\\' ? 2 : 1;
    end = std::min(end + 1, body_.size());
    out_.append(body_.data() + pos_, end - pos_);
    pos_ = end;
  }

  void CopyNumber() {
    for (const absl::string_view word : kNotFinite) {
      if (absl::StartsWith(body_.substr(pos_), word)) {
        absl::StrAppend(&out_, "\"", word, "\"");
        pos_ += word.size();
        return;
      }
    }
    size_t end = pos_ + 1;
    while (end < body_.size() &&
           (absl::ascii_isalnum(body_[end]) || body_[end] == '.' || body_[end] == '+' || body_[end] == '-')) {
      ++end;
    }
    const std::string number(body_.substr(pos_, end - pos_));
    const bool decimal = number.find_first_not_of("0123456789.eE+-") == std::string::npos;
    const bool overflows = decimal && std::isinf(std::strtod(number.c_str(), nullptr));
    absl::StrAppend(&out_, overflows ? (number[0] == '-' ? "\"-Infinity\"" : "\"Infinity\"") : number);
    pos_ = end;
  }

  absl::string_view body_;
  const JsonLimits& limits_;
  std::string out_;
  size_t pos_ = 0;
  int64_t depth_ = 0;
  int64_t values_ = 0;
};

// ParseInOrder. Json::parse with a filter takes time in the square of a list's length: it looks through the
// whole list whenever an object in the list ends.
class OrderedReader : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  using Json = nlohmann::ordered_json;

  OrderedReader(absl::Span<const absl::string_view> members, size_t max_keys)
      : members_(members), max_keys_(max_keys) {}

  Json root;

  bool key(std::string& key) override {
    if (num_skipped_ > 0) return true;
    const bool is_wanted = open_.size() > 1 || members_.empty() || absl::c_linear_search(members_, key);
    Container& in = open_.back();
    member_ = is_wanted && ++in.num_keys <= max_keys_ ? &(*in.value)[key] : nullptr;
    return true;
  }
  bool start_object(size_t) override { return Open(Json::value_t::object); }
  bool start_array(size_t) override { return Open(Json::value_t::array); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  struct Container {
    Json* value;
    size_t num_keys = 0;  // of an object
  };

  // Where the next value goes; null: the value is left out.
  Json* Place() {
    if (num_skipped_ > 0) return nullptr;
    if (open_.empty()) return &root;
    Json* const in = open_.back().value;
    return in->is_array() ? &in->get_ref<Json::array_t&>().emplace_back() : member_;
  }
  template <typename Value>
  bool Add(Value&& value) {
    if (Json* const place = Place()) *place = std::forward<Value>(value);
    return true;
  }
  bool Open(Json::value_t type) {
    Json* const place = Place();
    if (place == nullptr) {
      ++num_skipped_;
      return true;
    }
    *place = Json(type);
    open_.push_back({place});
    return true;
  }
  bool Close() {
    if (num_skipped_ > 0) {
      --num_skipped_;
    } else {
      open_.pop_back();
    }
    return true;
  }

  const absl::Span<const absl::string_view> members_;
  const size_t max_keys_;
  // A value in `open_` does not move: its list or object gets the next value once this one has ended.
  std::vector<Container> open_;
  size_t num_skipped_ = 0;  // open lists and objects that are left out
  Json* member_ = nullptr;  // Place within an object
};

void AppendAscii(unsigned char c, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      *out += "\\\"";
      return;
    case '\\':
      *out += "\\\\";
      return;
    case '\n':
      *out += "\\n";
      return;
    case '\r':
      *out += "\\r";
      return;
    case '\t':
      *out += "\\t";
      return;
    default:
      if (c >= 0x20 && c != 0x7f) {
        *out += static_cast<char>(c);
        return;
      }
      *out += "\\u00";
      *out += kHex[c >> 4];
      *out += kHex[c & 15];
  }
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view body, const JsonLimits& limits) {
  if (absl::StripAsciiWhitespace(body).empty())
    return absl::InvalidArgumentError("The body is empty; it must be a JSON object");
  absl::StatusOr<std::string> scanned = Scanner(body, limits).Run();
  if (!scanned.ok()) return scanned.status();
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(*scanned);
  } catch (const nlohmann::json::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("The body is not valid JSON (near byte ", error.byte, ")"));
  } catch (const std::exception&) {
    return absl::InvalidArgumentError("The body is not valid JSON");
  }
  if (!value.is_object()) return absl::InvalidArgumentError("The body must be a JSON object");
  return value;
}

nlohmann::ordered_json ParseInOrder(absl::string_view body, absl::Span<const absl::string_view> members,
                                    size_t max_keys) {
  // ParseJsonObject has checked the limits.
  const JsonLimits no_limits{std::numeric_limits<int32_t>::max(), std::numeric_limits<int64_t>::max()};
  const absl::StatusOr<std::string> scanned = Scanner(body, no_limits).Run();
  if (!scanned.ok()) return nlohmann::ordered_json::object();
  OrderedReader reader(members, max_keys);
  const bool is_json = nlohmann::ordered_json::sax_parse(*scanned, &reader);
  return is_json && reader.root.is_object() ? std::move(reader.root) : nlohmann::ordered_json::object();
}

void AppendJsonString(absl::string_view text, std::string* out) {
  *out += '"';
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = DecodeUtf8(text, pos);
    if (!step.valid) {
      *out += "\xEF\xBF\xBD";
    } else if (step.length == 1) {
      AppendAscii(static_cast<unsigned char>(text[pos]), out);
    } else {
      out->append(text.data() + pos, step.length);
    }
    pos += step.length;
  }
  *out += '"';
}

std::string FindModelName(absl::string_view body, const JsonLimits& limits) {
  ModelNameFinder finder;
  nlohmann::json::sax_parse(body.begin(), body.end(), &finder);
  if (!finder.failed) return std::move(finder.name);
  // Numbers that JSON does not have, perhaps.
  const absl::StatusOr<nlohmann::json> object = ParseJsonObject(body, limits);
  if (!object.ok()) return "";
  const auto name = object->find("model");
  return name != object->end() && name->is_string() ? name->get<std::string>() : "";
}

}  // namespace somnus
