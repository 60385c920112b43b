"""Other people's formats, one file each: ``read`` makes records of one, ``write`` lines of ours."""
