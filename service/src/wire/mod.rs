//! Engine wires: frames, payload decoding, content hashing, the engines' own hash algorithms.
