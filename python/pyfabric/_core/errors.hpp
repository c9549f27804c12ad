#pragma once
#include <stdexcept>
#include <string>

namespace pyfabric {

// A libfabric call that failed. `code` is the positive fi_errno; Python maps it to its class in one place (errors.py).
class FabricFailure : public std::runtime_error {
 public:
  FabricFailure(int code, const std::string& what) : std::runtime_error(what), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// Throws FabricFailure when `rc` is a negative fi_errno.
void check(long rc, const std::string& operation);
std::string describe(int code);

}  // namespace pyfabric
