#include "coordinator/structured/schema_source.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "coordinator/structured/schema_keywords.h"

namespace somnus {
namespace {

std::string PercentDecoded(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    int value;
    if (text[i] == '%' && i + 2 < text.size() && absl::SimpleHexAtoi(text.substr(i + 1, 2), &value)) {
      out.push_back(static_cast<char>(value));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

std::string RemoveDots(absl::string_view path) {
  std::vector<absl::string_view> out;
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    if (parts[i] == "..") {
      if (out.size() > 1) out.pop_back();
      if (last) out.push_back("");
    } else if (parts[i] == ".") {
      if (last) out.push_back("");
    } else {
      out.push_back(parts[i]);
    }
  }
  std::string joined;
  for (size_t i = 0; i < out.size(); ++i) absl::StrAppend(&joined, i == 0 ? "" : "/", out[i]);
  return joined;
}

size_t SchemeLength(absl::string_view uri) {
  size_t length = 0;
  while (length < uri.size() &&
         (absl::ascii_isalnum(uri[length]) || absl::StrContains("+.-", uri.substr(length, 1)))) {
    ++length;
  }
  return length > 0 && length < uri.size() && uri[length] == ':' ? length + 1 : 0;
}

// RFC 3986, section 5.2, without queries in the base.
std::string ResolveUri(absl::string_view base, absl::string_view reference) {
  if (SchemeLength(reference) > 0 || base.empty()) return std::string(reference);
  if (reference.empty()) return std::string(base);
  const size_t scheme = SchemeLength(base);
  if (absl::StartsWith(reference, "//")) return absl::StrCat(base.substr(0, scheme), reference);
  size_t path = scheme;
  if (absl::StartsWith(base.substr(scheme), "//")) {
    path = std::min(base.find('/', scheme + 2), base.size());
  }
  if (absl::StartsWith(reference, "/")) return absl::StrCat(base.substr(0, path), RemoveDots(reference));
  const absl::string_view base_path = base.substr(path);
  const size_t slash = base_path.rfind('/');
  if (slash == absl::string_view::npos && scheme > 0 && path == scheme)
    return std::string(reference);  // urn:
  const absl::string_view folder = slash == absl::string_view::npos ? "" : base_path.substr(0, slash + 1);
  return absl::StrCat(base.substr(0, path), RemoveDots(absl::StrCat(folder, reference)));
}

SchemaRefusal Whole(std::string message) { return {"", "", std::move(message)}; }

}  // namespace

void AppendPointerToken(absl::string_view token, std::string* pointer) {
  absl::StrAppend(pointer, "/", absl::StrReplaceAll(token, {{"~", "~0"}, {"/", "~1"}}));
}

const SchemaJson* FindMember(const SchemaJson& object, absl::string_view name) {
  if (!object.is_object()) return nullptr;
  for (const auto& member : object.get_ref<const SchemaJson::object_t&>()) {
    if (member.first == name) return &member.second;
  }
  return nullptr;
}

std::variant<std::unique_ptr<SchemaSource>, SchemaRefusal> SchemaSource::Index(const SchemaJson& root,
                                                                               const GateOptions& options) {
  std::unique_ptr<SchemaSource> source(new SchemaSource(root));
  if (std::optional<SchemaRefusal> refusal = source->ReadDraft()) return *std::move(refusal);
  if (std::optional<SchemaRefusal> refusal = source->Walk(options)) return *std::move(refusal);
  return source;
}

std::optional<SchemaRefusal> SchemaSource::ReadDraft() {
  const SchemaJson* draft = FindMember(root_, "$schema");
  if (draft == nullptr || !draft->is_string()) return std::nullopt;
  const std::string& uri = draft->get_ref<const std::string&>();
  if (absl::StrContains(uri, "draft-03")) {
    return SchemaRefusal{"/$schema", "$schema", "draft 3 of JSON Schema is not supported; use 2020-12"};
  }
  id_without_dollar_ = absl::StrContains(uri, "draft-04");
  reference_hides_siblings_ =
      id_without_dollar_ || absl::StrContains(uri, "draft-06") || absl::StrContains(uri, "draft-07");
  return std::nullopt;
}

std::optional<SchemaRefusal> SchemaSource::Walk(const GateOptions& options) {
  resources_.push_back({"", &root_});
  resource_ids_.emplace("", 0);
  places_.emplace(&root_, Place{});
  std::vector<Pending> stack = {{&root_, 1, true}};
  while (!stack.empty()) {
    const Pending pending = stack.back();
    stack.pop_back();
    if (static_cast<int64_t>(places_.size()) > options.max_values) {
      return Whole(absl::StrCat("the schema has more than ", options.max_values, " values"));
    }
    if (std::optional<SchemaRefusal> refusal = CheckSizes(pending, options)) return refusal;
    if (pending.is_schema && pending.value->is_object()) Register(*pending.value);
    Descend(pending, &stack);
  }
  return std::nullopt;
}

std::optional<SchemaRefusal> SchemaSource::CheckSizes(const Pending& pending,
                                                      const GateOptions& options) const {
  if (pending.depth > options.max_depth) {
    return SchemaRefusal{PointerOf(pending.value), "",
                         absl::StrCat("the schema is nested more than ", options.max_depth, " deep")};
  }
  if (static_cast<int64_t>(pending.value->size()) > options.max_keys && pending.value->is_structured()) {
    return SchemaRefusal{
        PointerOf(pending.value), "",
        absl::StrCat("an object or list of the schema has more than ", options.max_keys, " members")};
  }
  return std::nullopt;
}

void SchemaSource::Register(const SchemaJson& schema) {
  int32_t& resource = places_[&schema].resource;
  const SchemaJson* id = FindMember(schema, id_without_dollar_ ? "id" : "$id");
  if (reference_hides_siblings_ && FindMember(schema, "$ref") != nullptr) id = nullptr;
  if (id != nullptr && id->is_string()) {
    absl::string_view uri = id->get_ref<const std::string&>();
    const size_t hash = uri.find('#');
    if (hash == 0) {
      if (uri.size() > 1) anchors_.emplace(absl::StrCat(resources_[resource].uri, uri), &schema);
    } else {
      std::string absolute = ResolveUri(resources_[resource].uri, uri.substr(0, hash));
      resource = static_cast<int32_t>(resources_.size());
      resource_ids_.emplace(absolute, resource);
      resources_.push_back({std::move(absolute), &schema});
    }
  }
  for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
    const SchemaJson* anchor = FindMember(schema, keyword);
    if (anchor != nullptr && anchor->is_string()) {
      anchors_.emplace(absl::StrCat(resources_[resource].uri, "#", anchor->get_ref<const std::string&>()),
                       &schema);
    }
  }
}

void SchemaSource::Descend(const Pending& pending, std::vector<Pending>* stack) {
  const int32_t resource = places_[pending.value].resource;
  if (pending.value->is_object()) {
    for (const auto& member : pending.value->get_ref<const SchemaJson::object_t&>()) {
      places_[&member.second] = {pending.value, member.first, 0, resource};
      const SchemaPosition position = pending.is_schema ? PositionOf(member.first) : SchemaPosition::kNone;
      if (position == SchemaPosition::kMap && member.second.is_object()) {
        for (const auto& inner : member.second.get_ref<const SchemaJson::object_t&>()) {
          places_[&inner.second] = {&member.second, inner.first, 0, resource};
          stack->push_back({&inner.second, pending.depth + 2, true});
        }
      } else if (position == SchemaPosition::kList && member.second.is_array()) {
        for (size_t i = 0; i < member.second.size(); ++i) {
          places_[&member.second[i]] = {&member.second, "", i, resource};
          stack->push_back({&member.second[i], pending.depth + 2, true});
        }
      } else {
        stack->push_back({&member.second, pending.depth + 1, position != SchemaPosition::kNone});
      }
    }
  } else if (pending.value->is_array()) {
    for (size_t i = 0; i < pending.value->size(); ++i) {
      places_[&(*pending.value)[i]] = {pending.value, "", i, resource};
      stack->push_back({&(*pending.value)[i], pending.depth + 1, false});
    }
  }
}

std::string SchemaSource::PointerOf(const SchemaJson* value) const {
  std::vector<std::string> tokens;
  for (auto place = places_.find(value); place != places_.end() && place->second.parent != nullptr;
       place = places_.find(place->second.parent)) {
    tokens.push_back(place->second.parent->is_array() ? absl::StrCat(place->second.index)
                                                      : place->second.key);
  }
  std::string pointer;
  for (auto token = tokens.rbegin(); token != tokens.rend(); ++token) AppendPointerToken(*token, &pointer);
  return pointer;
}

const SchemaJson* SchemaSource::Resolve(const SchemaJson* from, absl::string_view reference) const {
  const size_t hash = reference.find('#');
  const absl::string_view uri = reference.substr(0, hash);
  const std::string fragment =
      hash == absl::string_view::npos ? std::string() : PercentDecoded(reference.substr(hash + 1));
  const auto place = places_.find(from);
  int32_t resource = place == places_.end() ? 0 : place->second.resource;
  if (!uri.empty()) {
    const auto found = resource_ids_.find(ResolveUri(resources_[resource].uri, uri));
    if (found == resource_ids_.end()) return nullptr;
    resource = found->second;
  }
  if (fragment.empty()) return resources_[resource].root;
  if (fragment[0] == '/') return FollowPointer(resources_[resource].root, fragment);
  const auto anchor = anchors_.find(absl::StrCat(resources_[resource].uri, "#", fragment));
  return anchor == anchors_.end() ? nullptr : anchor->second;
}

const SchemaJson* SchemaSource::FollowPointer(const SchemaJson* from, absl::string_view pointer) const {
  const std::vector<absl::string_view> tokens = absl::StrSplit(pointer.substr(1), '/');
  for (const absl::string_view token : tokens) {
    if (from->is_array()) {
      uint32_t index;
      if (!absl::SimpleAtoi(token, &index) || index >= from->size()) return nullptr;
      from = &(*from)[index];
    } else {
      from = FindMember(*from, absl::StrReplaceAll(token, {{"~1", "/"}, {"~0", "~"}}));
      if (from == nullptr) return nullptr;
    }
  }
  return from;
}

}  // namespace somnus
