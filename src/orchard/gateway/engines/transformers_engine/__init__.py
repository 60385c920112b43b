"""The parts of the embedded engine: libraries, attention over ragged batches, memory, the model, drawing, the batch."""
