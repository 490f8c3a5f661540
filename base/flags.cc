#include "base/flags.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/flag_values.h"

namespace somnus {
namespace {

constexpr size_t kMaxListLength = 1024;
// Larger bounds only keep arithmetic from overflowing; --help does not show them.
constexpr int64_t kNoBound = int64_t{1} << 30;
constexpr absl::Duration kNoTimeBound = absl::Hours(24 * 30);

template <typename V>
struct ValueOf {
  using type = V;
};
template <typename T>
struct ValueOf<std::optional<T>> {
  using type = T;
};

// The variable's value as --help shows it; empty for an optional without a value.
template <typename V, typename Format>
std::string DefaultOf(const V& value, const Format& format) {
  if constexpr (std::is_same_v<V, typename ValueOf<V>::type>) {
    return format(value);
  } else {
    return value.has_value() ? format(*value) : "";
  }
}

std::string Range(const std::string& low, const std::string& high) { return absl::StrCat(low, " to ", high); }

std::string IntBounds(int64_t low, int64_t high) {
  if (high < kNoBound) return Range(absl::StrCat(low), absl::StrCat(high));
  return low > 0 ? absl::StrCat("at least ", low) : "";
}

std::string TimeBounds(absl::Duration low, absl::Duration high) {
  if (high < kNoTimeBound) return Range(FormatTime(low), FormatTime(high));
  return low > absl::ZeroDuration() ? absl::StrCat("at least ", FormatTime(low)) : "";
}

absl::StatusOr<int64_t> ParseInt(absl::string_view text, int64_t low, int64_t high) {
  int64_t number;
  if (absl::SimpleAtoi(text, &number) && number >= low && number <= high) return number;
  return absl::InvalidArgumentError(absl::StrCat("is not a whole number from ", low, " to ", high));
}

Flag Row(std::string name, std::string value_name, std::string help) {
  Flag flag;
  flag.name = std::move(name);
  flag.value_name = std::move(value_name);
  flag.help = std::move(help);
  return flag;
}

}  // namespace

template <typename V>
Flag Flag::Int(std::string name, V* value, int64_t low, int64_t high, std::string help) {
  using T = typename ValueOf<V>::type;
  Flag flag = Row(std::move(name), "N", std::move(help));
  flag.default_text = DefaultOf(*value, [](T number) { return absl::StrCat(number); });
  flag.bounds = IntBounds(low, high);
  flag.set = [=](const std::string& text) {
    const absl::StatusOr<int64_t> number = ParseInt(text, low, high);
    if (number.ok()) *value = static_cast<T>(*number);
    return number.status();
  };
  return flag;
}
template Flag Flag::Int(std::string, int32_t*, int64_t, int64_t, std::string);
template Flag Flag::Int(std::string, int64_t*, int64_t, int64_t, std::string);
template Flag Flag::Int(std::string, uint64_t*, int64_t, int64_t, std::string);
template Flag Flag::Int(std::string, std::optional<int32_t>*, int64_t, int64_t, std::string);
template Flag Flag::Int(std::string, std::optional<int64_t>*, int64_t, int64_t, std::string);
template Flag Flag::Int(std::string, std::optional<uint64_t>*, int64_t, int64_t, std::string);

template <typename V>
Flag Flag::Number(std::string name, V* value, double low, double high, std::string help) {
  Flag flag = Row(std::move(name), "X", std::move(help));
  flag.default_text = DefaultOf(*value, [](double number) { return absl::StrCat(number); });
  flag.bounds = Range(absl::StrCat(low), absl::StrCat(high));
  flag.set = [=](const std::string& text) {
    double number;
    if (!absl::SimpleAtod(text, &number) || !(number >= low && number <= high)) {
      return absl::InvalidArgumentError(absl::StrCat("is not a number from ", low, " to ", high));
    }
    *value = number;
    return absl::OkStatus();
  };
  return flag;
}
template Flag Flag::Number(std::string, double*, double, double, std::string);
template Flag Flag::Number(std::string, std::optional<double>*, double, double, std::string);

template <typename V>
Flag Flag::Text(std::string name, V* value, std::string help) {
  Flag flag = Row(std::move(name), "TEXT", std::move(help));
  flag.default_text = DefaultOf(*value, [](const std::string& text) { return text; });
  flag.set = [=](const std::string& text) {
    if (text.empty()) return absl::InvalidArgumentError("is empty");
    *value = text;
    return absl::OkStatus();
  };
  return flag;
}
template Flag Flag::Text(std::string, std::string*, std::string);
template Flag Flag::Text(std::string, std::optional<std::string>*, std::string);

template <typename V>
Flag Flag::Switch(std::string name, V* value, std::string help) {
  Flag flag = Row(std::move(name), "", std::move(help));
  flag.default_text = DefaultOf(*value, [](bool on) { return std::string(on ? "true" : "false"); });
  flag.set = [=](const std::string& text) {
    bool on;
    if (!absl::SimpleAtob(text, &on)) return absl::InvalidArgumentError("is not true or false");
    *value = on;
    return absl::OkStatus();
  };
  return flag;
}
template Flag Flag::Switch(std::string, bool*, std::string);
template Flag Flag::Switch(std::string, std::optional<bool>*, std::string);

template <typename V>
Flag Flag::Time(std::string name, V* value, absl::Duration low, absl::Duration high, std::string help) {
  Flag flag = Row(std::move(name), "TIME", std::move(help));
  flag.default_text = DefaultOf(*value, FormatTime);
  flag.bounds = TimeBounds(low, high);
  flag.set = [=](const std::string& text) {
    const absl::StatusOr<absl::Duration> time = ParseTime(text);
    if (!time.ok()) return time.status();
    if (*time < low || *time > high) {
      return absl::InvalidArgumentError(
          absl::StrCat("is not a time from ", FormatTime(low), " to ", FormatTime(high)));
    }
    *value = *time;
    return absl::OkStatus();
  };
  return flag;
}
template Flag Flag::Time(std::string, absl::Duration*, absl::Duration, absl::Duration, std::string);
template Flag Flag::Time(std::string, std::optional<absl::Duration>*, absl::Duration, absl::Duration,
                         std::string);

template <typename V>
Flag Flag::Bytes(std::string name, V* value, int64_t low, int64_t high, std::string help) {
  Flag flag = Row(std::move(name), "BYTES", std::move(help));
  flag.default_text = DefaultOf(*value, FormatBytes);
  flag.bounds = high < int64_t{1} << 40 ? Range(FormatBytes(low), FormatBytes(high))
                : low > 1               ? absl::StrCat("at least ", FormatBytes(low))
                                        : "";
  flag.set = [=](const std::string& text) {
    const absl::StatusOr<int64_t> bytes = ParseBytes(text);
    if (!bytes.ok()) return bytes.status();
    if (*bytes < low || *bytes > high) {
      return absl::InvalidArgumentError(
          absl::StrCat("is not a number of bytes from ", FormatBytes(low), " to ", FormatBytes(high)));
    }
    *value = *bytes;
    return absl::OkStatus();
  };
  return flag;
}
template Flag Flag::Bytes(std::string, int64_t*, int64_t, int64_t, std::string);
template Flag Flag::Bytes(std::string, std::optional<int64_t>*, int64_t, int64_t, std::string);

Flag Flag::Ints(std::string name, std::vector<int32_t>* value, int64_t low, int64_t high, std::string help) {
  Flag flag = Row(std::move(name), "N,N,...", std::move(help));
  flag.default_text = absl::StrJoin(*value, ",");
  flag.bounds = IntBounds(low, high);
  high = std::min<int64_t>(high, std::numeric_limits<int32_t>::max());
  flag.set = [=](const std::string& text) {
    std::vector<int32_t> numbers;
    for (const absl::string_view part : absl::StrSplit(text, ',')) {
      const absl::StatusOr<int64_t> number = ParseInt(part, low, high);
      if (!number.ok() || numbers.size() == kMaxListLength) {
        return absl::InvalidArgumentError(absl::StrCat("is not a list of at most ", kMaxListLength,
                                                       " whole numbers from ", low, " to ", high,
                                                       ", separated by commas"));
      }
      numbers.push_back(static_cast<int32_t>(*number));
    }
    *value = std::move(numbers);
    return absl::OkStatus();
  };
  return flag;
}

Flag Flag::Custom(std::string name, std::string value_name, std::string default_text, Setter set,
                  std::string help) {
  Flag flag = Row(std::move(name), std::move(value_name), std::move(help));
  flag.default_text = std::move(default_text);
  flag.set = std::move(set);
  return flag;
}

Flag Flag::Shows(std::string text) && {
  value_name = std::move(text);
  return std::move(*this);
}

Flag Flag::Default(std::string text) && {
  default_text = std::move(text);
  return std::move(*this);
}

Flag Flag::Alias(std::string other_name) && {
  aliases.push_back(std::move(other_name));
  return std::move(*this);
}

Flag Flag::TakesMore() && {
  takes_more = true;
  return std::move(*this);
}

}  // namespace somnus
