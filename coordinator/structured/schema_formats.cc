#include "coordinator/structured/schema_formats.h"

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

std::string Date() {
  const std::string year = R"((?:\d{3}[1-9]|\d{2}[1-9]0|\d[1-9]00|[1-9]000))";
  const std::string leap = R"((?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00))";
  return absl::StrCat("(?:", year,
                      "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"
                      "|02-(?:0[1-9]|1\\d|2[0-8]))|",
                      leap, "-02-29)");
}

std::string Time() {
  return R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d))";
}

// RFC 3339, appendix A.
std::string Duration() {
  const std::string time = R"((?:T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)))";
  const std::string date = R"((?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?))";
  return absl::StrCat("P(?:", date, time, "?|", time, "|\\d+W)");
}

std::string Ipv4() {
  const std::string octet = R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
  return absl::StrCat("(?:", octet, "\\.){3}", octet);
}

// RFC 3986, section 3.2.2.
std::string Ipv6() {
  const std::string h = "[0-9A-Fa-f]{1,4}";
  const std::string low = absl::StrCat("(?:", h, ":", h, "|", Ipv4(), ")");
  const auto before = [&](int groups) { return absl::StrCat("(?:(?:", h, ":){0,", groups, "}", h, ")?"); };
  return absl::StrCat("(?:(?:", h, ":){6}", low, "|::(?:", h, ":){5}", low, "|(?:", h, ")?::(?:", h, ":){4}",
                      low, "|", before(1), "::(?:", h, ":){3}", low, "|", before(2), "::(?:", h, ":){2}", low,
                      "|", before(3), "::", h, ":", low, "|", before(4), "::", low, "|", before(5), "::", h,
                      "|", before(6), "::)");
}

std::string Hostname() {
  const std::string label = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?";
  const std::string short_label = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,18}[0-9A-Za-z])?";
  return absl::StrCat("(?:", label, "(?:\\.", label, "){0,2}|", short_label, "(?:\\.", short_label,
                      "){3,11})");
}

std::string Email() {
  const std::string atom = "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+";
  return absl::StrCat(atom, "(?:\\.", atom, ")*@", Hostname());
}

// RFC 3986.
struct UriParts {
  std::string pct = "%[0-9A-Fa-f]{2}";
  std::string pchar = absl::StrCat("(?:[0-9A-Za-z._~!$&'()*+,;=:@-]|", pct, ")");
  std::string segments = absl::StrCat("(?:/", pchar, "*)*");
  std::string tail = absl::StrCat("(?:\\?(?:[/?]|", pchar, ")*)?(?:#(?:[/?]|", pchar, ")*)?");
  std::string authority = absl::StrCat("(?:(?:[0-9A-Za-z._~!$&'()*+,;=:-]|", pct, ")*@)?(?:\\[", Ipv6(),
                                       "\\]|(?:[0-9A-Za-z._~!$&'()*+,;=-]|", pct, ")*)(?::\\d*)?");
  std::string rooted = absl::StrCat("//", authority, segments, "|/(?:", pchar, "+", segments, ")?");
  std::string uri =
      absl::StrCat("[A-Za-z][0-9A-Za-z+.-]*:(?:", rooted, "|", pchar, "+", segments, ")?", tail);
};

std::string UriReference() {
  const UriParts parts;
  const std::string first = absl::StrCat("(?:[0-9A-Za-z._~!$&'()*+,;=@-]|", parts.pct, ")+");
  return absl::StrCat("(?:", parts.uri, "|(?:", parts.rooted, "|", first, parts.segments, ")?", parts.tail,
                      ")");
}

// RFC 6570.
std::string UriTemplate() {
  const std::string pct = "%[0-9A-Fa-f]{2}";
  const std::string name =
      absl::StrCat("(?:[0-9A-Za-z_]|", pct, ")(?:\\.?(?:[0-9A-Za-z_]|", pct, "))*(?::[1-9]\\d{0,3}|\\*)?");
  return absl::StrCat("(?:[!#$&(-;=?-\\[\\]_a-z~\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef]|", pct,
                      "|\\{[+#./;?&=,!@|]?", name, "(?:,", name, ")*\\})*");
}

absl::flat_hash_map<std::string, std::string> Patterns() {
  const std::string pointer = "(?:/(?:[^~/]|~[01])*)*";
  absl::flat_hash_map<std::string, std::string> patterns = {
      {"date", Date()},
      {"time", Time()},
      {"date-time", absl::StrCat(Date(), "[Tt]", Time())},
      {"duration", Duration()},
      {"ipv4", Ipv4()},
      {"ip-address", Ipv4()},  // draft 3's name
      {"ipv6", Ipv6()},
      {"hostname", Hostname()},
      {"host-name", Hostname()},  // draft 3's name
      {"email", Email()},
      {"byte", "(?:[0-9A-Za-z+/]{4})*(?:[0-9A-Za-z+/]{2}==|[0-9A-Za-z+/]{3}=)?"},  // OpenAPI: base64
      {"base64", "(?:[0-9A-Za-z+/]{4})*(?:[0-9A-Za-z+/]{2}==|[0-9A-Za-z+/]{3}=)?"},
      {"uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
      {"uri", UriParts().uri},
      {"uri-reference", UriReference()},
      {"uri-template", UriTemplate()},
      {"json-pointer", pointer},
      {"relative-json-pointer", absl::StrCat("(?:0|[1-9][0-9]*)(?:#|", pointer, ")")},
  };
  for (auto& [unused, pattern] : patterns) pattern = absl::StrCat("^(?:", pattern, ")$");
  return patterns;
}

}  // namespace

const std::string* FormatPattern(absl::string_view format) {
  static const auto* patterns = new absl::flat_hash_map<std::string, std::string>(Patterns());
  const auto found = patterns->find(format);
  return found == patterns->end() ? nullptr : &found->second;
}

bool IsHint(absl::string_view format) {
  static const auto* hints = new absl::flat_hash_set<std::string>(
      {"int8",     "int16",      "int32",  "int64",    "uint8",  "uint16",  "uint32",
       "uint64",   "float",      "double", "decimal",  "number", "integer", "password",
       "textarea", "multi-line", "binary", "markdown", "html",   "currency"});
  return hints->contains(format);
}

}  // namespace somnus
