#pragma once
// The deleter of a std::unique_ptr to an object of a C library: std::unique_ptr<SSL, FreeBy<SSL_free>>.

namespace somnus {

template <auto kFree>
struct FreeBy {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};

}  // namespace somnus
