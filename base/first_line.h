#pragma once
// The first line of a file of the kernel's (/proc, /sys), which has little more.

#include <fstream>
#include <string>

namespace somnus {

// Without its newline; empty where the file cannot be read.
inline std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace somnus
